"""Commands about what is kept back or kept out of sight, on a service in this process."""

import asyncio
import json

import pytest
from tests.plugin_rest import stdio_config

from mcp_junction.cli import servers
from mcp_junction.config.load import load


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
