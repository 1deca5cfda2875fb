"""A config that leads back to itself starts no cascade of processes."""

import json

import pytest
from tests.plugin_journeys import PROGRAM, scripted


def gateway(path):
    """A config entry that serves another config file."""
    return {"command": str(PROGRAM), "args": ["--config", str(path)]}


@pytest.mark.req("EDGE-CIRCULAR", "SC-007")
async def test_a_file_that_serves_itself_is_refused_there_and_the_rest_serves(junction, tmp_path):
    starts = tmp_path / "starts"
    servers = {
        "again": gateway(tmp_path / "mcp.json"),
        "fine": scripted("echo", starts=str(starts)),
    }
    client = await junction(servers)
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("circular reference")
    assert "server 'again' failed during " in complaint
    assert "remove the entry that starts mcp-junction with this file" in complaint
    await client.told("fine:echo")
    await client.end()
    assert len(starts.read_text().splitlines()) == 1, "a second aggregator started its servers"


@pytest.mark.req("EDGE-CIRCULAR", "SC-007")
async def test_a_file_that_serves_itself_without_an_environment_is_refused_too(junction, tmp_path):
    starts = tmp_path / "starts"
    direct = gateway(tmp_path / "mcp.json")
    servers = {
        "again": {"command": "env", "args": ["-i", direct["command"], *direct["args"]]},
        "fine": scripted("echo", starts=str(starts)),
    }
    client = await junction(servers)
    assert list(await client.tools()) == ["fine:echo"]
    await client.complaint("server 'again' failed during startup: circular reference")
    await client.end()
    assert len(starts.read_text().splitlines()) == 1, "a second aggregator started its servers"


@pytest.mark.req("EDGE-CIRCULAR")
async def test_a_circle_of_two_files_is_refused_where_it_closes(junction, config, tmp_path):
    starts = tmp_path / "starts"
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    config({"b": gateway(second), "own": scripted("echo", starts=str(starts))}, "a.json")
    config({"a": gateway(first), "own": scripted("echo", starts=str(starts))}, "b.json")
    client = await junction(first)
    assert list(await client.tools()) == ["b:own:echo", "own:echo"]
    call = json.loads(await client.told("b:own:echo", deep=True))
    assert call["params"] == {"name": "echo", "arguments": {"deep": True}}
    await client.end()
    assert len(starts.read_text().splitlines()) == 2


@pytest.mark.req("EDGE-CIRCULAR")
async def test_a_circle_through_another_name_of_the_file_is_seen(junction, tmp_path):
    alias = tmp_path / "alias.json"
    alias.symlink_to(tmp_path / "mcp.json")
    client = await junction({"again": gateway(alias), "fine": scripted("echo")})
    assert list(await client.tools()) == ["fine:echo"]
    await client.complaint("circular reference")


async def test_an_aggregator_may_serve_another_with_another_file(junction, config, tmp_path):
    inner = config({"deep": scripted("about", "echo")}, "inner.json")
    client = await junction({"outer": gateway(inner), "also": gateway(inner)})
    names = [f"{key}:deep:{tool}" for key in ("outer", "also") for tool in ("about", "echo")]
    assert list(await client.tools()) == names
    pids = {(await client.read(f"{key}:deep:about"))["pid"] for key in ("outer", "also")}
    assert len(pids) == 2
