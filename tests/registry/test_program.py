"""The program itself: `mcp-junction serve` on its registry, with a file and without one."""

import asyncio
import json
import signal

import pytest
from tests.http.wire import BOUND
from tests.plugin_http import PROGRAM, write_config
from tests.registry.toolbox import tool

pytestmark = pytest.mark.preloaded


async def command(*words: str) -> tuple[int, str]:
    """A command of the program, and what it said."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(BOUND):
        said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_it_serves_without_a_file(serve):
    program = await serve(None)
    await program.ready()
    front = await program.front()
    assert await front.names() == []


@pytest.mark.req("R-DRAIN")
async def test_a_hangup_applies_what_differs_and_nothing_of_a_bad_file(serve, toolbox, tmp_path):
    first, second = await toolbox([tool("one")]), await toolbox([tool("two")])
    program = await serve({"a": {"url": first.url}}, watch_config=False)
    front = await program.front()
    assert await front.names() == ["a.one"]
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": 1}}}')
    program.process.send_signal(signal.SIGHUP)
    await program.said("nothing was changed")
    assert await front.names() == ["a.one"]
    write_config(tmp_path, {"a": {"url": first.url}, "b": {"url": second.url}}, {})
    program.process.send_signal(signal.SIGHUP)
    await front.heard("notifications/tools/list_changed")
    async with asyncio.timeout(BOUND):
        while await front.names() != ["a.one", "b.two"]:  # noqa: ASYNC110 - a process
            await asyncio.sleep(0.05)
    alone = await program.front("/mcp/b")
    assert await alone.names() == ["two"]
    assert first.openings == 1


@pytest.mark.req("NFR-S1")
async def test_after_a_kill_the_stored_catalog_is_served_before_the_servers_answer(serve, toolbox):
    servers = [await toolbox([tool(f"t{n}")]) for n in range(3)]
    entries = {f"s{n}": {"url": server.url} for n, server in enumerate(servers)}
    program = await serve(entries)
    front = await program.front()
    names = await front.names()
    assert names == ["s0.t0", "s1.t1", "s2.t2"]
    await front.told("s1.t1", n=1)
    await asyncio.sleep(0.5)
    await program.kill()
    for server in servers:
        server.answers.clear()
    again = await serve(entries)
    front = await again.front()
    assert await front.names() == names, "before any of them answers"
    for server in servers:
        server.answers.set()
    assert json.loads(await front.told("s2.t2", n=7)) == {"n": 7}


async def test_what_was_called_is_in_the_audit_and_the_audit_holds(serve, toolbox, tmp_path):
    server = await toolbox([tool("one")])
    program = await serve({"a": {"url": server.url}})
    front = await program.front()
    for n in range(5):
        await front.told("a.one", n=n)
    await front.refused("a.nothing")
    await program.stop()
    data = ("--data-dir", str(tmp_path / "data"))
    file = tmp_path / "audit.jsonl"
    code, said = await command("audit", "export", *data, "--output", str(file))
    assert code == 0, said
    assert file.read_text("utf-8").count('"tools/call"') == 6
    code, said = await command("audit", "verify", *data)
    assert code == 0, said


async def test_a_service_cannot_be_without_its_audit(serve):
    program = await serve({}, listens=False, audit="off")
    assert await program.ended() != 0
    assert "normal or strict" in program.errors


async def test_a_hangup_without_a_file_ends_nothing(serve):
    program = await serve(None)
    program.process.send_signal(signal.SIGHUP)
    await program.said("no config file")
    await program.ready()
