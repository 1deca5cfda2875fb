"""Commands about what is kept back or kept out of sight, on a service in this process."""

import asyncio
import json

import pytest
from tests.plugin_rest import SERVERS, stdio_config
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.cli import servers, tools
from mcp_junction.config.load import load
from mcp_junction.errors import JunctionError, UsageError


@pytest.fixture
def ask(capsys):
    """Run a command on a service; its exit code, and what it printed."""

    async def run(served, command, *words: str) -> tuple[int, str]:
        where = ("--url", served.url, "--key", served.keys["admin"])
        code = await asyncio.to_thread(command.run, [*words[:1], *where, *words[1:]])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.mark.req("J-ABSENT", "J-CLI")
async def test_absent_servers_are_listed_and_removed(gateway, ask, tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"filed": stdio_config()}}))
    served = await gateway(load(str(path), {}, {}))
    await served.until("filed", "CONNECTED")
    path.write_text(json.dumps({"mcpServers": {}}))
    await served.registry.reload(load(str(path), {}, {}))
    assert "There are no servers yet" in (await ask(served, servers, "list"))[1]
    code, text = await ask(served, servers, "list", "--all")
    assert code == 0
    assert "ABSENT" in text
    (found,) = json.loads((await ask(served, servers, "list", "--all", "--json"))[1])
    assert (found["name"], found["absent"]) == ("filed", True)
    assert "absent" in (await ask(served, servers, "show", "filed"))[1]
    assert (await ask(served, servers, "remove", "filed"))[0] == 0
    assert json.loads((await ask(served, servers, "list", "--all", "--json"))[1]) == []


@pytest.fixture
async def changed(gateway):
    """A service with a tool whose definition was changed under a strict pin."""
    served = await gateway()
    async with Toolbox([tool("echo", "says it"), tool("quiet")]) as server:
        given = {"transport_type": "HTTP", "connection_config": {"url": server.url}}
        await served.register("box", pin="strict", **given)
        await served.client().post(f"{SERVERS}/box/tools/refresh")
        server.tools = [tool("echo", "sells [red]it\u200b"), tool("quiet")]
        await served.client().post(f"{SERVERS}/box/tools/refresh")
        yield served


@pytest.mark.req("J-REVIEW", "J-CLI")
async def test_what_changed_is_shown_and_nothing_hides_in_it(changed, ask):
    code, text = await ask(changed, tools, "changes")
    assert (code, "box.echo" in text, "box.quiet" in text) == (0, True, False)
    assert "quarantined" in text
    assert "definition_changed" in text
    (one,) = json.loads((await ask(changed, tools, "changes", "--json"))[1])
    _, text = await ask(changed, tools, "changes", "box.echo")
    assert r'~ /description: "says it" -> "sells [red]it\u200b"' in text
    assert f"hash {one['hash']}" in text
    shown = json.loads((await ask(changed, tools, "changes", one["id"], "--json"))[1])
    assert [change["path"] for change in shown["changes"]] == ["/description"]


@pytest.mark.req("J-REVIEW", "J-CLI")
async def test_a_tool_is_approved_and_blocked_by_the_hash_that_was_shown(changed, ask):
    (one,) = json.loads((await ask(changed, tools, "changes", "--json"))[1])
    for words, complaint in (
        (("approve", "box.echo"), "--hash"),
        (("approve", "box.echo", "--hash", one["hash"][:8]), "at least 12"),
        (("approve", "box.echo", "--hash", "0" * 64), "changed again"),
        (("block", "box.nothing", "--hash", one["hash"]), "no such tool"),
    ):
        with pytest.raises(JunctionError, match=complaint):
            await ask(changed, tools, *words)
    assert (await changed.call("box.echo")).status_code == 404
    code, text = await ask(changed, tools, "approve", "box.echo", "--hash", one["hash"][:12])
    assert (code, text.strip()) == (0, "box.echo is approved, and can be called")
    assert (await changed.call("box.echo")).status_code == 200
    code, text = await ask(changed, tools, "block", one["id"], "--hash", one["hash"], "--json")
    assert (code, json.loads(text)["quarantined"]) == (0, True)
    assert (await changed.call("box.echo")).status_code == 404
    assert "blocked" in (await ask(changed, tools, "changes"))[1]


@pytest.mark.req("J-REVIEW", "J-CLI")
async def test_at_a_terminal_it_is_shown_and_asked_for(changed, ask, monkeypatch):
    asked, answers = [], ["n", "y"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda words: asked.append(words) or answers.pop(0))
    with pytest.raises(UsageError, match="nothing was changed"):
        await ask(changed, tools, "approve", "box.echo")
    assert (await changed.call("box.echo")).status_code == 404
    _, text = await ask(changed, tools, "approve", "box.echo")
    assert "/description" in text
    assert (await changed.call("box.echo")).status_code == 200
    assert asked == ["Approve this definition? [y/N] "] * 2
