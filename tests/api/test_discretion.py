"""A server repeats what it was sent: nobody else gets to read it."""

import logging

import pytest
from tests.plugin_rest import SERVERS, registration, stdio_config
from tests.registry.toolbox import Toolbox

from mcp_junction.store.records import AuditQuery

CANARY = "hunter2-hunter2"


class Parrot(Toolbox):
    """Says what it was sent when it refuses; at the opening, or when its tools are asked for."""

    said = f"I do not know Bearer {CANARY}"

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    async def _answer(self, method, params):
        if method == self.method:
            return 200, {"error": {"code": -32000, "message": self.said}}
        return await super()._answer(method, params)


async def everything(served) -> str:
    """All that can be read about it."""
    await served.bus.flush()
    await served.registry._ground.audit.flush()
    client = served.client()
    texts = [
        (await client.get(path, headers={"last-event-id": "0"})).text
        for path in (
            SERVERS,
            f"{SERVERS}/parrot",
            f"{SERVERS}/parrot/history",
            "/api/v1/aggregator/health",
            "/api/v1/events?follow=false",
            "/metrics",
        )
    ]
    texts.append((await served.call("x", server_id="parrot")).text)
    texts.append((await client.post(f"{SERVERS}/parrot/connect")).text)
    store = served.registry._ground.store
    texts.append(repr(await store.audit.rows(AuditQuery(limit=1000))))
    texts.append(repr([r.error_message for r in await store.servers.all()]))
    return "\n".join(texts)


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_header_that_a_server_repeats_is_nowhere_to_be_read(served, caplog, method):
    caplog.set_level(logging.DEBUG)
    async with Parrot(method) as server:
        config = {"url": server.url, "headers": {"Authorization": f"Bearer {CANARY}"}}
        body = registration("parrot", transport_type="HTTP", connection_config=config)
        assert (await served.client().post(SERVERS, json=body)).status_code == 201
        shown = await served.until("parrot", "ERROR")
        assert "I do not know" in shown["error_message"]
        assert CANARY not in await everything(served)
    assert CANARY not in caplog.text


async def test_what_a_program_says_at_its_end_is_without_its_variables(served, caplog):
    script = "import os, sys; print(os.environ['API_TOKEN'], file=sys.stderr); sys.exit(3)"
    command = stdio_config()["command"]
    config = {"command": command, "args": ["-c", script], "env": {"API_TOKEN": CANARY}}
    await served.client().post(SERVERS, json=registration("parrot", connection_config=config))
    await served.until("parrot", "ERROR")
    assert CANARY not in await everything(served)
    assert "its stderr ends with" in caplog.text
    assert CANARY not in caplog.text
