"""A server repeats what it was sent: nobody else gets to read it."""

import logging
import socket

import pytest
from tests.plugin_rest import SERVERS, registration, stdio_config
from tests.registry.toolbox import Toolbox

from mcp_junction.store.audit_records import AuditQuery

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
    await served.registry._context.audit.flush()
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
    store = served.registry._context.store
    texts.append(repr(await store.audit.rows(AuditQuery(limit=1000))))
    texts.append(repr([r.error_message for r in await store.servers.all()]))
    return "\n".join(texts)


@pytest.mark.req("S-07")
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


@pytest.mark.req("S-07")
async def test_the_name_of_a_variable_that_is_not_set_is_told(served, caplog):
    config = {**stdio_config(), "env": {"API_KEY": "${MY_API_TOKEN}", "OTHER": CANARY}}
    await served.client().post(SERVERS, json=registration("parrot", connection_config=config))
    shown = await served.until("parrot", "ERROR")
    told = "the environment variable MY_API_TOKEN is not set"
    assert told in shown["error_message"]
    assert told in (await served.client().post(f"{SERVERS}/parrot/connect")).text
    everywhere = await everything(served)
    assert told in everywhere
    assert told in caplog.text
    assert CANARY not in everywhere
    assert CANARY not in caplog.text


@pytest.mark.req("S-07")
async def test_a_caller_hears_what_a_program_died_of(served):
    script = (
        "import os, sys; said = f'Error: certificate of {os.environ[\"T\"]} has expired'\n"
        "print(said, file=sys.stderr); sys.exit(2)"
    )
    config = {"command": stdio_config()["command"], "args": ["-c", script], "env": {"T": CANARY}}
    await served.client().post(SERVERS, json=registration("parrot", connection_config=config))
    shown = await served.until("parrot", "ERROR")
    told = "exited with code 2"
    assert told in shown["error_message"]
    cause = "it said: Error: certificate of *** has expired"
    assert cause in shown["error_message"]
    assert cause in (await served.client().post(f"{SERVERS}/parrot/connect")).text
    assert CANARY not in await everything(served)


class WebPage(Toolbox):
    """Answers everything with a page for people, and in it what it was sent."""

    page = f"<!doctype html><html><title>Sign in, {CANARY}</title><p>{CANARY}".encode()
    status = 200

    async def _exchange(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {self.status} X\r\ncontent-type: text/html\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(self.page)}\r\n\r\n".encode() + self.page)
        await writer.drain()
        raise ConnectionError


@pytest.mark.req("S-07")
@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_a_web_page_is_called_one_and_what_it_repeats_is_hidden(served, caplog, status):
    caplog.set_level(logging.DEBUG)
    async with WebPage() as server:
        server.status = status
        config = {"url": server.url, "headers": {"Authorization": f"Bearer {CANARY}"}}
        body = registration("parrot", transport_type="HTTP", connection_config=config)
        await served.client().post(SERVERS, json=body)
        shown = await served.until("parrot", "ERROR")
        assert f"HTTP {status}" in shown["error_message"]
        assert " with a web page" in shown["error_message"]
        if status != 404:  # after which the older transport is tried
            assert "('Sign in, ***') where MCP should be" in shown["error_message"]
        assert CANARY not in await everything(served)
    assert CANARY not in caplog.text


@pytest.mark.req("S-07")
async def test_a_host_that_is_not_found_is_named(monkeypatch, served):
    def look_up(*asked, **more):  # a name server would be asked, off this machine
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    config = {"url": "https://no-such-host.invalid/mcp", "headers": {"X-Key": CANARY}}
    body = registration("parrot", transport_type="HTTP", connection_config=config)
    await served.client().post(SERVERS, json=body)
    shown = await served.until("parrot", "ERROR")
    assert "the name 'no-such-host.invalid' cannot be resolved" in shown["error_message"]
    assert CANARY not in await everything(served)
