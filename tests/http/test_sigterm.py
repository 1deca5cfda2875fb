"""SIGTERM: not ready first, no new calls; what runs finishes, what waits is ended explicitly."""

import asyncio
import json
import signal

import pytest
from tests.http.peer_http import HttpPeer
from tests.http.wire import BOUND, Response, Wire
from tests.plugin_http import Program, stdio_entry

from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LATEST_STATELESS,
    VERSION_KEY,
)

pytestmark = pytest.mark.preloaded

META = {
    VERSION_KEY: LATEST_STATELESS,
    CAPABILITIES_KEY: {"elicitation": {"form": {}}},
    CLIENT_INFO_KEY: {"name": "t", "version": "0"},
}
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}


async def ask(program: Program, method: str, params: dict, **headers: str) -> Wire:
    """Send a request of the stateless era; the connection that it was sent on."""
    wire = await program.wire()
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    given = {"mcp-protocol-version": LATEST_STATELESS, "mcp-method": method}
    wire.request("POST", "/mcp", json.dumps(body).encode(), **given, **headers)
    return wire


def call(program: Program, tool: str, **arguments: object):
    params = {"name": tool, "arguments": arguments}
    return ask(program, "tools/call", params, mcp_name=tool)


async def status_of(program: Program, path: str) -> int:
    response: Response = await program.get(path)
    return response.status


def cancellations(peer: HttpPeer) -> list[object]:
    seen = [visit.message for visit in peer.told("notifications/cancelled")]
    return [message["params"]["requestId"] for message in seen]


@pytest.mark.req("R-DRAIN")
async def test_what_runs_finishes_what_waits_is_ended_and_the_program_exits_with_0(serve):
    async with HttpPeer() as peer:
        program = await serve({"p": {"url": peer.url}, "child": stdio_entry()})
        await program.ready()
        parked = await (await call(program, "p.ask", **QUESTION)).response()
        state = parked.json["result"]["requestState"]
        asked = peer.told("tools/call")[-1].message["id"]
        listening = await ask(
            program, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
        )
        assert (await listening.response()).is_stream
        acknowledged = (await listening.event()).message
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        running = await call(program, "p.hold")
        await peer.visited("tools/call", 2)
        assert await status_of(program, "/readyz") == 200
        program.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND):
            while await status_of(program, "/readyz") != 503:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.01)
        late = await (await call(program, "p.echo")).response()
        assert late.status == 503
        assert late.json["error"]["data"]["delivery"] == "not_sent"
        back = {"name": "p.ask", "arguments": QUESTION, "requestState": state}
        resumed = await (await ask(program, "tools/call", back, mcp_name="p.ask")).response()
        assert resumed.status == 503
        ended = (await listening.event()).message
        assert ended["result"]["resultType"] == "complete", "a listen is answered, not cut off"
        await peer.until(lambda: asked in cancellations(peer))
        assert program.process.returncode is None, "a call still runs"
        for session in peer.sessions.values():
            for gate in list(session.conversation.held.values()):
                gate.set()
        answer = (await running.response()).json
        assert answer["result"]["content"][0]["text"] == "released"
        assert await program.ended() == 0
        assert len(cancellations(peer)) == 1, "nothing that ran was cancelled"
