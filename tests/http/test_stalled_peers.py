"""Peers that read nothing of what is written to them are cut, on either side, after 30 s."""

import asyncio
import json
import sys

import pytest
from tests.http.links import Ears, definition, fly, landed
from tests.http.origin import BOUND
from tests.http.test_registry import Told
from tests.http.wire import Wire
from tests.plugin_http import stdio_entry

from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.resilience.stalls import STALLED_AFTER, StallSweep
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.http.link import HttpLink
from mcp_junction.upstream.outcome import Delivery

LARGE = "x" * (8 * 1024 * 1024)
ARGUMENTS = {"text": LARGE}
CALL = {"name": "p.echo", "arguments": ARGUMENTS}
ECHO = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}).encode()
DEAF = """
import sys, json
def answer(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        answer(message["id"], {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
               "serverInfo": {"name": "deaf", "version": "0"}})
    elif message.get("method") == "tools/list":
        answer(message["id"], {"tools": [{"name": "take", "inputSchema": {"type": "object"}}]})
    elif message.get("method") == "server/discover":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"],
                          "error": {"code": -32601, "message": "no"}}), flush=True)
    elif message.get("method") == "tools/call":
        break
import time
time.sleep(600)
"""


async def until(is_so) -> None:
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)


async def pass_by(stalls: StallSweep, clock: Told) -> None:
    """Let as much time go by as a peer is given."""
    stalls.sweep()
    clock.time += STALLED_AFTER
    stalls.sweep()


@pytest.mark.req("R-QUOTA")
async def test_a_client_that_reads_nothing_of_an_answer_is_cut(serving):
    clock = Told()
    gateway = await serving({"p": stdio_entry()}, clock=clock, max_body_bytes=64 * 1024 * 1024)
    await gateway.settled()
    client = await gateway.front(listens=False)
    wire = await Wire.open(gateway.port, limit=1024)
    wire.request("POST", "/mcp", ECHO, **client.headers)
    stalls = gateway.junction.stalls
    await until(lambda: any(hasattr(w, "is_paused") and w.unsent for w in stalls._writers))
    (stuck,) = [w for w in stalls._writers if hasattr(w, "is_paused") and w.unsent]
    await pass_by(stalls, clock)
    await until(lambda: stuck not in stalls._writers and not stuck.unsent)
    assert await client.result("ping") == {}, "nobody else notices"
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await wire.response()
    wire.reset()


@pytest.mark.req("R-QUOTA")
async def test_what_is_unsent_to_a_principal_is_counted_and_his_oldest_connection_goes(serving):
    gateway = await serving(
        {"p": stdio_entry()},
        max_body_bytes=64 * 1024 * 1024,
        max_bytes_per_principal=10 * 1024 * 1024,
    )
    await gateway.settled()
    client = await gateway.front(listens=False)
    usage = gateway.junction.quotas.of(LOCAL_OWNER)
    wires = []
    for _ in range(3):
        wires.append(await Wire.open(gateway.port, limit=1024))
        wires[-1].request("POST", "/mcp", ECHO, **client.headers)
        await until(lambda: usage.calls)
        await until(lambda: not usage.calls)
    assert 0 < len(usage.unsent) < 3, "there is no room for all of them"
    assert 0 < usage.bytes <= 10 * 1024 * 1024
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await wires[0].response()
    assert len((await wires[-1].response()).body) > len(LARGE)
    for wire in wires:
        wire.reset()
    await until(lambda: not usage.bytes)


@pytest.mark.req("R-QUOTA")
async def test_a_server_that_reads_nothing_of_a_request_is_cut():
    taken: list[asyncio.StreamWriter] = []

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)

    clock = Told()
    stalls = StallSweep(clock)
    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    link = HttpLink(definition(url), Ears(), 1024, stalls=stalls)
    try:
        small, large = fly(link), new_flight("tools/call")
        large.params = json.dumps({"name": "t", "arguments": ARGUMENTS}).encode()
        link.send(large)
        await until(lambda: any(writer.unsent for writer in stalls._writers))
        await pass_by(stalls, clock)
        outcome = await landed(large)
        assert outcome.delivery is Delivery.UNKNOWN
        assert "has read nothing of the request for 30 s" in outcome.message
        assert not small.future.done(), "that one was taken; its answer may take its time"
    finally:
        await link.end(0.0)
        for writer in taken:
            writer.transport.abort()
        server.close()
        await asyncio.sleep(0)


@pytest.mark.req("R-QUOTA")
async def test_a_child_that_reads_nothing_of_its_input_is_ended(serving, tmp_path):
    program = tmp_path / "deaf.py"
    program.write_text(DEAF, "utf-8")
    clock = Told()
    entry = {"command": sys.executable, "args": ["-E", "-S", str(program)]}
    gateway = await serving({"d": entry}, clock=clock, max_body_bytes=64 * 1024 * 1024)
    await gateway.settled()
    client = await gateway.front(listens=False)
    first = client.begin("d.take", text=LARGE)
    server = gateway.junction.servers["d"]
    await until(lambda: server.link.unsent > 0)
    await pass_by(gateway.junction.stalls, clock)
    error = (await client.answer(first))["error"]
    assert error["data"]["delivery"] == "unknown"
    await until(lambda: server.error is not None)
    assert "has read nothing of its input for 30 s" in server.error.message
