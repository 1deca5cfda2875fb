"""Secrets over REST: masked when shown, kept when sent back, and sent nowhere else."""

import json

import pytest
from tests.plugin_rest import SERVERS, registration, stdio_config
from tests.registry.toolbox import Toolbox

from mcp_junction.config.load import load
from mcp_junction.store.audit_records import AuditQuery

SECRET = "Zq8-canary-77"
pytestmark = pytest.mark.req("S-14")


class Recorder(Toolbox):
    """Keeps the heads of the requests that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    async def _exchange(self, reader, writer):
        await super()._exchange(Tee(reader, self.heard), writer)


class Tee:
    def __init__(self, reader, heard) -> None:
        self._reader, self._heard = reader, heard

    async def readuntil(self, end):
        head = await self._reader.readuntil(end)
        self._heard.append(head.decode())
        return head

    def __getattr__(self, name):
        return getattr(self._reader, name)


async def kept(served, name: str = "peer"):
    return await served.registry._context.store.servers.get(name)


async def test_arguments_are_masked_from_the_first_answer_on(gateway):
    served = await gateway()
    config = stdio_config()
    config["args"] += ["--token", SECRET, f"API_KEY={SECRET}", "-k", SECRET]
    config["args"] += ["--header", f"Authorization: Bearer {SECRET}"]
    body = registration(connection_config=config, auto_connect=False)
    answers = [
        await served.client().post(SERVERS, json=body),
        await served.client().get(SERVERS),
        await served.client().get(f"{SERVERS}/peer"),
        await served.client().patch(f"{SERVERS}/peer", json={"description": "x"}),
    ]
    for answer in answers:
        assert answer.is_success
        assert SECRET not in answer.text
        assert "Authorization: ***" in answer.text


async def test_what_was_shown_and_is_sent_back_changes_nothing(gateway):
    served = await gateway()
    url = f"https://host.example/health?token={SECRET}"
    config = {**stdio_config(), "env": {"API_KEY": SECRET}}
    config["args"] = [*config["args"], "--token", SECRET]
    body = registration(connection_config=config, health_check_url=url, auto_connect=False)
    shown = (await served.client().post(SERVERS, json=body)).json()
    before = await kept(served)
    sent = {key: shown[key] for key in ("connection_config", "health_check_url")}
    answer = await served.client().patch(f"{SERVERS}/peer", json=sent)
    assert answer.status_code == 200
    after = await kept(served)
    assert after.connection_config == before.connection_config
    assert after.connection_config["args"][-1] == SECRET
    assert after.health_check_url == url
    assert SECRET not in answer.text


async def test_a_kept_header_does_not_go_to_a_new_origin(gateway):
    served = await gateway()
    async with Recorder() as mine, Recorder() as theirs:
        headers = {"Authorization": f"Bearer {SECRET}"}
        config = {"url": mine.url, "headers": headers}
        shown = await served.register(transport_type="HTTP", connection_config=config)
        moved = {**shown["connection_config"], "url": theirs.url}
        answer = await served.client().patch(f"{SERVERS}/peer", json={"connection_config": moved})
        assert answer.status_code == 422
        assert "the origin of its url has changed; send the value itself" in answer.text
        assert (await kept(served)).connection_config["headers"] == headers
        moved["headers"] = {"Authorization": "Bearer another"}
        answer = await served.client().patch(f"{SERVERS}/peer", json={"connection_config": moved})
        assert answer.status_code == 200
        await served.until("peer", "CONNECTED")
        while not theirs.heard:
            await served.client().post(f"{SERVERS}/peer/connect")
        assert SECRET in "".join(mine.heard)
        assert SECRET not in "".join(theirs.heard)
        assert "Bearer another" in "".join(theirs.heard)


@pytest.mark.parametrize(
    "change",
    [
        {"health_check_url": "https://evil.example/health?token=***"},
        {"health_check_url": "https://host.example/health?token=***"},
        {"connection_config": {"command": "x", "args": ["--token=***"]}},
        {"connection_config": {"command": "/tmp/evil", "env": {"API_KEY": "***"}}},
    ],
)
async def test_a_mask_that_stands_for_nothing_is_not_stored(gateway, change):
    served = await gateway()
    config = {**stdio_config(), "env": {"API_KEY": SECRET}}
    new = await served.client().post(SERVERS, json=registration("new", **change))
    assert (new.status_code, "send the value itself" in new.text) == (422, True)
    body = registration(connection_config=config, auto_connect=False)
    await served.client().post(SERVERS, json=body)
    before = await kept(served)
    answer = await served.client().patch(f"{SERVERS}/peer", json=change)
    assert (answer.status_code, "send the value itself" in answer.text) == (422, True)
    assert await kept(served) == before


async def test_a_server_of_the_file_is_shown_as_the_file_has_it(gateway, tmp_path):
    async with Toolbox() as box:
        entry = {
            "url": f"http://127.0.0.1:{box.port}/${{PLACE}}?key=${{TOKEN}}",
            "headers": {"Authorization": "Bearer ${TOKEN}", "X-Other": SECRET},
        }
        stdio = {"command": "${NAME}", "args": ["--token", "${TOKEN}", "${TOKEN}", "-v"]}
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {"peer": entry, "local": stdio}}))
        variables = {"TOKEN": SECRET, "PLACE": "mcp", "NAME": "no-such-program"}
        served = await gateway(load(str(path), variables, {}, lenient=True))
        shown = await served.until("peer", "CONNECTED")
        assert shown["connection_config"] == {
            "url": f"http://127.0.0.1:{box.port}/${{PLACE}}?key=${{TOKEN}}",
            "headers": {"Authorization": "Bearer ${TOKEN}", "X-Other": "***"},
        }
        local = (await served.client().get(f"{SERVERS}/local")).json()
        assert local["connection_config"] == stdio
        assert SECRET not in (await served.client().get(SERVERS)).text


async def test_a_secret_that_a_tool_repeats_is_in_its_answer_alone(gateway):
    served = await gateway()
    async with Toolbox() as box:
        box.says = {"structuredContent": {"echo": f"x{SECRET}y"}}
        config = {"url": box.url, "headers": {"X-Api-Key": SECRET}}
        await served.register(transport_type="HTTP", connection_config=config)
        answer = await served.call("peer.echo", {"text": f"I say {SECRET}"})
        assert SECRET in answer.text
    await served.audit.flush()
    await served.bus.flush()
    rows = repr(await served.registry._context.store.audit.rows(AuditQuery(limit=1000)))
    assert "I say ***" in rows
    events = (await served.client().get("/api/v1/events?follow=false")).text
    for text in (rows, events, (await served.client().get("/metrics")).text):
        assert SECRET not in text
