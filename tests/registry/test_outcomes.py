"""How a call ended is told by one set of names: in the audit, on the bus and to sinks."""

import asyncio
from contextlib import aclosing

import pytest
from tests.plugin_registry import ADMIN
from tests.registry.toolbox import BOUND, until

from mcp_junction.errors import DefinitionChanged
from mcp_junction.telemetry.events import OutcomeName

LONG = {"content": [{"type": "text", "text": "x" * 5_000}]}


@pytest.mark.req("J-OUTCOMES")
@pytest.mark.parametrize("beside", [{}, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        ({}, "ok"),
        ({"isError": False}, "ok"),
        ({"isError": True}, "tool_error"),
        ({"isError": True, "_meta": {"a": 1}}, "tool_error"),
        ({"structuredContent": {"isError": True}}, "ok"),
    ],
)
async def test_a_tools_own_error_is_no_success_in_the_audit_and_on_the_bus(
    single, toolbox, says, outcome, beside
):
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    server.says = beside | says
    async with aclosing(run.bus.subscribe(types=["call.completed"])) as events:
        coming = asyncio.ensure_future(anext(events))
        await until(lambda: run.bus.has_readers)
        await run.call("box.echo")
        event = await asyncio.wait_for(coming, BOUND)
    (row,) = await run.rows(kind="call")
    assert row.outcome == outcome
    assert event.data["outcome"] == outcome


async def test_an_unknown_tool_is_an_error_that_was_not_sent(single, toolbox):
    run = await single()
    await run.add("box", await toolbox())
    await run.call("box.nothing")
    (row,) = await run.rows(kind="call")
    assert (row.outcome, row.decision, row.delivery) == ("error", "unknown", "not_sent")


async def test_administrative_acts_have_the_same_names(single, toolbox):
    run = await single()
    await run.add("box", await toolbox())
    with pytest.raises(DefinitionChanged):
        await run.registry.tools.approve("box", "echo", "0" * 64, ADMIN)
    rows = [row for row in await run.rows(actor="ann") if row.kind == "outcome"]
    assert [(row.action, row.outcome) for row in rows] == [
        ("server.register", "ok"),
        ("tool.approve", "error"),
    ]


def test_the_names_are_those_of_the_contract():
    assert [name.value for name in OutcomeName] == [
        "ok",
        "tool_error",
        "error",
        "denied",
        "cancelled",
        "input_required",
        "unknown",
    ]
