"""`mcp-junction serve` as a program: how it starts, what it refuses, how it ends."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess

import pytest
from tests import preloaded
from tests.http.peer_http import HttpPeer, SsePeer
from tests.http.wire import BOUND, Wire
from tests.plugin_http import stdio_entry, write_config
from tests.plugin_journeys import scripted


def run(*words: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if "JUNCTION_" not in key}
    return subprocess.run(
        [*preloaded.program(), *words], capture_output=True, text=True, timeout=BOUND, env=env
    )


def refused(tmp_path, *options: str, servers=None, **settings) -> str:
    """What the program complains about instead of serving."""
    config = write_config(tmp_path, servers or {}, settings)
    data = ["--data-dir", str(tmp_path / "data")]
    ended = run("serve", "--config", str(config), "--port", "0", *data, *options)
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.preloaded
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ((), "only.echo"),
        (("--separator", ":"), "only:echo"),
        (("--prefix", "never"), "echo"),
        (("--prefix", "auto"), "echo"),
    ],
)
async def test_names_are_spelled_as_the_options_say(serve, options, name):
    program = await serve({"only": stdio_entry()}, *options)
    client = await program.front()
    assert name in await client.names()
    assert json.loads(await client.told(name))["name"] == "echo"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_keys_it_listens_to_this_machine_only(tmp_path, host):
    complaint = refused(tmp_path, "--host", host)
    assert f"listening on {host} needs keys" in complaint
    assert "mcp-junction keys create" in complaint


@pytest.mark.preloaded
async def test_with_a_key_it_listens_everywhere_and_asks_for_it(serve, tmp_path):
    run("keys", "create", "--role", "agent", "--data-dir", str(tmp_path / "data"))
    program = await serve({}, "--host", "0.0.0.0")
    wire = await program.wire()
    wire.request("POST", "/mcp", b"{}")
    assert (await wire.response()).status == 401


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        complaint = refused(tmp_path, "--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}" in complaint


@pytest.mark.parametrize(
    ("endpoints", "words"),
    [
        ({"one": ["one"]}, "$.junction.endpoints.one: has the name of a server"),
        ({"few": ["nobody"]}, "$.junction.endpoints.few: 'nobody' names no server"),
        ({"few": "one"}, "$.junction.endpoints.few: must be an array"),
    ],
)
def test_a_set_that_makes_no_sense_is_named(tmp_path, endpoints, words):
    assert words in refused(tmp_path, servers={"one": stdio_entry()}, endpoints=endpoints)


@pytest.mark.preloaded
async def test_each_server_and_each_set_has_an_address(serve):
    renamed = stdio_entry() | {"junction": {"tools": {"rename": {"echo": "say"}}}}
    program = await serve(
        {"one": stdio_entry(), "two": renamed}, endpoints={"few": ["one.echo", "two.s*"]}
    )
    alone = await program.front("/mcp/one")
    assert "echo" in await alone.names()
    few = await program.front("/mcp/few")
    assert await few.names() == ["one.echo", "two.say", "two.seen", "two.steps", "two.speak"]
    assert (await few.read("two.say"))["name"] == "echo"
    assert "unknown tool" in (await few.refused("one.hold"))["message"]
    assert (await program.get("/mcp/nobody", accept="text/event-stream")).status == 404


@pytest.mark.parametrize("kind", [HttpPeer, SsePeer])
async def test_a_remote_server_that_is_down_is_named_and_comes_back_by_itself(serve, kind):
    async with kind() as remote:
        await remote.close()
        transport = "http" if kind is HttpPeer else "sse"
        servers = {"far": {"url": remote.url, "type": transport}, "near": stdio_entry()}
        program = await serve(servers)
        await program.said("server 'far' failed")
        assert "connection refused" in program.errors
        await program.ready()
        client = await program.front()
        assert {name.partition(".")[0] for name in await client.names()} == {"near"}
        await remote.listen()
        told = 0  # of near, perhaps, before it is told of far
        while "far.steps" not in await client.names():
            told += 1
            await client.heard("notifications/tools/list_changed", told)
        assert await client.told("far.steps", count=1) == "done"
        assert program.errors.count("server 'far' failed") == 1  # said once, not at every attempt
        await program.stop()


async def test_told_to_stop_it_finishes_what_runs_and_ends_well(serve):
    async with HttpPeer() as peer:
        program = await serve({"far": {"url": peer.url}})
        client = await program.front()
        held = await client.under_way("far.hold")
        program.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND):
            while (await program.get("/readyz")).status != 503:
                pass
        for gate in list(peer.session.conversation.held.values()):
            gate.set()
        assert (await client.answer(held))["result"]["content"][0]["text"] == "released"
        assert await program.ended() == 0
        assert not peer.sessions
        with pytest.raises(ConnectionRefusedError):
            await Wire.open(program.port)


@pytest.mark.preloaded
async def test_a_set_that_names_a_disabled_server_is_served_without_it(serve):
    off = {**stdio_entry(), "disabled": True}
    program = await serve(
        {"one": stdio_entry(), "off": off, "one.x": off},
        endpoints={"few": ["one.echo", "off", "*.about"], "none": ["off.echo", "one.x.echo"]},
    )
    line = await program.said("'off' names a disabled server only")
    assert "$.junction.endpoints.few" in line
    assert "$.junction.endpoints.none: 'one.x.echo'" in program.errors
    assert "'*.about'" not in program.errors
    few, none = await program.front("/mcp/few"), await program.front("/mcp/none")
    assert sorted(await few.names()) == ["one.about", "one.echo"]
    assert await none.names() == []
    assert (await program.get("/mcp/off")).status == 404


@pytest.mark.req("R-ISOLATE")
async def test_it_serves_and_ends_though_nobody_reads_what_it_says(serve):
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", 0) as said:
        fcntl.fcntl(said, fcntl.F_SETPIPE_SZ, 4096)
        noisy = scripted("count", noise=["x" * 100] * 20)
        program = await serve({"one": noisy}, "--debug", listens=False, stderr=theirs)
        os.close(theirs)
        while b"listening on" not in (line := await asyncio.to_thread(said.readline)):
            assert line
        program.port = int(line.rpartition(b":")[2].partition(b"/")[0])
        try:
            client = await program.front()
            for number in range(1, 6):
                assert await client.told("one.count") == str(number)
        finally:
            status = await program.stop()
    assert status == 0
