"""What operators set for tools takes effect at once, everywhere, and outlives what it is about."""

import asyncio

import pytest
from tests.plugin_registry import ADMIN
from tests.registry.toolbox import tool, until

from mcp_junction.errors import InvalidChange, NotFound
from mcp_junction.upstream.outcome import OutcomeKind


async def test_a_disabled_tool_leaves_the_list_at_once_and_calls_under_way_finish(
    platform, toolbox
):
    run = await platform()
    server = await toolbox([tool("echo"), tool("other")])
    await run.add("box", server)
    server.gate.clear()
    calling = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: server.calls)
    await run.registry.tools.settings.change("box", "echo", {"enabled": False}, ADMIN)
    assert run.listed() == ["box.other"]
    server.gate.set()
    assert (await calling).kind is OutcomeKind.RESULT
    assert (await run.call("box.echo")).kind is OutcomeKind.ERROR
    await run.registry.tools.settings.change("box", "echo", {"enabled": None}, ADMIN)
    assert run.listed() == ["box.echo", "box.other"]
    events = [one for one in await run.events("tools.changed") if "decided" in one.data]
    assert [one.data["decided"] for one in events] == [["echo"], ["echo"]]
    assert events[0].data["changed_settings"] == ["enabled"]


async def test_settings_survive_a_rename_an_absence_and_a_restart(platform, toolbox):
    run = await platform()
    server = await toolbox([tool("echo"), tool("later")])
    await run.add("box", server)
    change = run.registry.tools.settings.change
    await change("box", "later", {"enabled": False}, ADMIN)
    await change("box", "not/seen", {"risk": "high", "enabled": False}, ADMIN)
    server.tools = [tool("echo")]
    await run.registry.refresh("box", ADMIN)
    await run.registry.change("box", {"name": "case"}, ADMIN)
    server.tools = [tool("echo"), tool("later"), tool("not/seen")]
    await run.registry.refresh("case", ADMIN)
    assert run.listed() == ["case.echo"]
    run = await platform()
    await run.until("case", "CONNECTED")
    assert run.listed() == ["case.echo"]


async def test_a_change_by_another_process_is_followed(platform, toolbox, opener):
    run = await platform()
    record = await run.add("box", await toolbox([tool("echo"), tool("other")]))
    other = await opener()
    await other.tool_settings.change(record.id, "echo", {"enabled": False}, "somebody")
    await until(lambda: run.listed() == ["box.other"])
    await other.tool_settings.change(record.id, "echo", {"enabled": None}, "somebody")
    await until(lambda: run.listed() == ["box.echo", "box.other"])


@pytest.mark.req("REQ-MCP-REG-003")
async def test_tools_of_incompatible_versions_are_not_offered(platform, toolbox):
    run = await platform()
    server = await toolbox(
        [tool("old", _meta={"version": "1.4"}), tool("new", _meta={"version": "2.1"}), tool("any")]
    )
    await run.add("box", server)
    change = run.registry.tools.settings.change
    await change("box", "*", {"versions": ">=1,<2"}, ADMIN)
    assert run.listed() == ["box.old", "box.any"], "the server itself is 1"
    await change("box", "new", {"versions": ["2.1", "3"]}, ADMIN)
    assert run.listed() == ["box.old", "box.new", "box.any"], "a tool's own range goes first"
    await change("box", "any", {"versions": ">=7"}, ADMIN)
    assert run.listed() == ["box.old", "box.new"]
    run = await platform()
    assert "box.any" not in run.listed(), "the version of the server is remembered"
    await run.until("box", "CONNECTED")
    assert run.listed() == ["box.old", "box.new"]


@pytest.mark.parametrize(
    ("name", "given", "place"),
    [
        ("echo", {"enabled": "yes"}, "$.enabled"),
        ("echo", {"risk": "medium"}, "$.risk"),
        ("echo", {"timeout_ms": 0}, "$.timeout_ms"),
        ("echo", {"timeout_ms": 10**12}, "$.timeout_ms"),
        ("echo", {"versions": ">=new"}, "$.versions"),
        ("echo", {"versions": []}, "$.versions"),
        ("echo", {"nothing": 1}, "$.nothing"),
        ("*", {"enabled": False}, "tool_name"),
        ("", {"enabled": False}, "tool_name"),
        ("echo", {"fallbacks": [{"server_id": "box"}]}, "$.fallbacks"),
        ("echo", {"fallbacks": [{"server_id": "x", "tool_name": "y"}]}, "$.fallbacks[0].server_id"),
        ("echo", {"fallbacks": [{"server_id": "box", "tool_name": "echo"}]}, "$.fallbacks[0]"),
        ("echo", {"fallbacks": [{"server_id": "box", "tool_name": "b"}] * 2}, "$.fallbacks[1]"),
        ("echo", {"fallbacks": [{"server_id": "box", "tool_name": ""}]}, "[0].tool_name"),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_with_its_place(
    single, toolbox, name, given, place
):
    run = await single()
    await run.add("box", await toolbox())
    with pytest.raises(InvalidChange) as caught:
        await run.registry.tools.settings.change("box", name, given, ADMIN)
    assert place in caught.value.problems[0].path
    assert await run.store.tool_settings.all() == []


@pytest.mark.parametrize(
    ("source", "is_right"),
    [
        ("/query", True),
        ("", True),
        ("/a~1b/0/~0", True),
        ({"value": None}, True),
        ({"value": {"any": 1}}, True),
        ("query", False),
        ("/a~2", False),
        ("/a~", False),
        ({"value": 1, "more": 2}, False),
        ({}, False),
        (7, False),
    ],
)
async def test_an_argument_of_a_fallback_is_a_pointer_or_a_value(single, toolbox, source, is_right):
    run = await single()
    record = await run.add("box", await toolbox())
    target = {"server_id": "box", "tool_name": "other", "arguments": {"q": source}}
    change = run.registry.tools.settings.change("box", "echo", {"fallbacks": [target]}, ADMIN)
    if is_right:
        assert (await change).fallbacks[0].server_id == record.id
    else:
        with pytest.raises(InvalidChange, match="arguments"):
            await change


async def test_nothing_is_set_for_a_server_that_is_not_there(single):
    run = await single()
    with pytest.raises(NotFound):
        await run.registry.tools.settings.change("box", "echo", {"enabled": False}, ADMIN)
