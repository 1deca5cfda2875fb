"""What nobody sends by accident: it is refused or harmless, and what others do goes on."""

import asyncio

import pytest
from tests.plugin_rest import CALL, SERVERS, registration
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.store.audit_records import AuditQuery

KIND = {"content-type": "application/json"}
LONE = b'"\\ud800"'
"""Half of a character: JSON can say it, UTF-8 cannot."""


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", SERVERS, b'{"name": %b}' % LONE),
        ("POST", SERVERS, b"{%b: 1}" % LONE),
        ("PATCH", f"{SERVERS}/peer", b"{%b: 1}" % LONE),
        ("PATCH", f"{SERVERS}/peer", b'{"description": %b}' % LONE),
        ("PATCH", f"{SERVERS}/peer", b'{"connection_config": {%b: 1}}' % LONE),
        ("POST", f"{SERVERS}/peer/disconnect", b"{%b: 1}" % LONE),
        ("POST", CALL, b"{%b: 1}" % LONE),
        ("POST", CALL, b'{"name": %b}' % LONE),
        ("POST", CALL, b'{"name": "x", "server_id": %b}' % LONE),
    ],
    ids=str,
)
async def test_half_a_character_is_refused_wherever_it_stands(gateway, method, path, body):
    served = await gateway()
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    answer = await served.client().request(method, path, content=body, headers=KIND)
    assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")
    assert (await served.client().get(f"{SERVERS}/peer")).json()["version"] == 1


@pytest.mark.parametrize(
    "path",
    [
        f"{SERVERS}/%ff",
        f"{SERVERS}/%0a",
        f"{SERVERS}/%ed%a0%80",
        f"{SERVERS}/..",
        f"{SERVERS}/../servers",
        f"{SERVERS}?limit=1&limit=2",
        f"{SERVERS}?limit=99999999999999999999999",
        f"{SERVERS}?cursor=%ff",
        f"{SERVERS}?status=%00",
        f"{SERVERS}?%ff=%ff",
        "/api/v1/aggregator/tools?server=%00",
        f"{SERVERS}/{'x' * 5000}",
    ],
)
async def test_odd_addresses_are_no_fault_of_ours(gateway, path):
    served = await gateway()
    answer = await served.client().get(served.url + path)
    assert answer.status_code in (200, 404, 422), answer.text


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "x" * 100_000, "\u202e"], ids=ascii)
async def test_a_tool_nobody_has_is_recorded_under_whatever_name_it_was_called(served, name):
    client_info = {"name": "t", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client_info}
    accept = {"accept": "application/json, text/event-stream"}
    client = served.client()
    first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    opened = await client.post("/mcp", headers=accept, json=first)
    session = accept | {"mcp-session-id": opened.headers["mcp-session-id"]}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}
    told = (await client.post("/mcp", json=asked, headers=session)).json()
    assert told["error"]["code"] == -32602
    assert (await served.call(name[:900])).status_code == 404
    audit = served.registry._context.audit
    await asyncio.wait_for(audit.flush(), 10)
    assert not audit.is_failing
    rows = await served.registry._context.store.audit.rows(AuditQuery(kind="call"))
    assert [row.outcome for row in rows] == ["error", "error"]
    answer = await client.post(SERVERS, json=registration(auto_connect=False))
    assert answer.status_code == 201, "and what must be on record first can still be done"


class Rude(Toolbox):
    """A server that answers initialize with an error of its own words."""

    words = ""

    async def _answer(self, method, params):
        if method == "initialize" and self.words:
            return 200, {"error": {"code": -32000, "message": self.words}}
        return await super()._answer(method, params)


WORDS = {"nul": "a\0b", "long": "x" * 1_000_000, "tricks": "\u202eevil\n\x1b[2J"}


@pytest.mark.parametrize("words", WORDS.values(), ids=list(WORDS))
async def test_whatever_words_a_server_fails_with_its_history_is_kept(served, words):
    async with Rude() as server:
        server.words = words
        config = {"url": server.url}
        body = registration("rude", transport_type="HTTP", connection_config=config)
        assert (await served.client().post(SERVERS, json=body)).status_code == 201
        shown = await served.until("rude", "ERROR")
        assert len(shown["error_message"]) < 3000
        assert shown["error_message"].isprintable()
        found = (await served.client().get(f"{SERVERS}/rude/history")).json()
        assert [one["event_type"] for one in found["items"]] == ["ERROR"]
        server.words = ""
        await served.until("rude", "CONNECTED")
        found = (await served.client().get(f"{SERVERS}/rude/history")).json()
        assert [one["event_type"] for one in found["items"]] == ["RECONNECT", "ERROR"]
        await served.bus.flush()
        assert served.bus.lost == 0


@pytest.mark.parametrize("odd", ["nul\0", "tab\t", "", "x" * 10_000, "bidi\u202e"], ids=ascii)
async def test_a_tool_with_an_odd_name_keeps_no_other_from_being_stored(served, odd):
    async with Toolbox([tool("good"), tool(odd), tool("fine")]) as server:
        config = {"url": server.url}
        await served.register("box", transport_type="HTTP", connection_config=config)
        answer = await served.client().post(f"{SERVERS}/box/tools/refresh")
        assert answer.status_code == 200
        found = (await served.client().get(f"{SERVERS}/box/tools")).json()
        assert {"good", "fine"} <= {one["original_name"] for one in found["items"]}
        assert (await served.call("box.good")).status_code == 200
