"""Every administrative act and every call is in the audit, and no secret is."""

import asyncio
import json

import pytest
from msgspec import Raw
from tests.plugin_registry import ADMIN, registration
from tests.registry.toolbox import until

from mcp_junction.calls.call import tool_call
from mcp_junction.errors import StoreUnavailable
from mcp_junction.upstream.outcome import Delivery, OutcomeKind

CANARY = "canary-5ecret"


@pytest.mark.req("NFR-SEC4")
async def test_every_administrative_act_is_there_with_who_did_it_and_how_it_ended(
    platform, toolbox
):
    run = await platform()
    server = await toolbox()
    record = await run.add("box", server)
    await run.registry.refresh("box", ADMIN)
    await run.registry.change("box", {"description": "x"}, ADMIN)
    tool = await run.registry.tools.get("box", "echo")
    await run.registry.tools.settings.change("box", "echo", {"risk": "high"}, ADMIN)
    await run.registry.tools.approve("box", "echo", tool.hash, ADMIN)
    await run.registry.disconnect("box", ADMIN)
    await run.registry.connect("box", ADMIN)
    await run.registry.remove("box", ADMIN)
    rows = [row for row in await run.rows(actor="ann") if row.kind == "outcome"]
    assert [row.action for row in rows] == [
        "server.register",
        "tools.refresh",
        "server.change",
        "tool.change",
        "tool.approve",
        "server.disconnect",
        "server.connect",
        "server.remove",
    ]
    assert {(row.server_id, row.role, row.outcome) for row in rows} == {(record.id, "admin", "ok")}
    assert rows[3].target == "box.echo"


@pytest.mark.req("NFR-SEC4")
@pytest.mark.parametrize("mode", ["normal", "strict"])
async def test_calls_of_own_tools_are_there_and_those_through_them_by_what_was_called(
    platform, toolbox, mode
):
    run = await platform(exposure="search", audit=mode)
    record = await run.add("box", await toolbox())
    assert (await run.call("find_tools", query="echo")).kind is OutcomeKind.RESULT
    await run.call("call_tool", name="box.echo", arguments={"password": CANARY})
    await run.call("call_tool", name="box.nothing")
    rows = [row for row in await run.rows() if row.action == "tools/call"]
    found, reached, unknown = [row for row in rows if row.kind != "intent"]
    assert (found.target, found.decision, found.server_id) == ("find_tools", "ALLOW", None)
    assert (reached.target, reached.decision, reached.server_id) == (
        "box.echo",
        "ALLOW",
        record.id,
    )
    assert (unknown.target, unknown.decision) == ("box.nothing", "unknown")
    intents = [row.target for row in rows if row.kind == "intent"]
    assert intents == (["box.echo"] if mode == "strict" else [])
    assert CANARY not in repr(rows)


@pytest.mark.req("NFR-SEC4")
async def test_every_call_leaves_a_row_the_unknown_and_the_failed_too(platform, toolbox):
    run = await platform()
    server = await toolbox()
    record = await run.add("box", server, timeout_ms=50)
    await run.call("box.echo", word="hi", password=CANARY)
    await run.call("box.nothing")
    server.gate.clear()
    await run.call("box.echo")
    good, unknown, late = await run.rows(kind="call")
    assert (good.actor, good.action, good.target) == ("local-owner", "tools/call", "box.echo")
    assert (good.server_id, good.outcome, good.decision) == (record.id, "ok", "ALLOW")
    assert good.params_sha256
    assert good.latency_ms is not None
    assert "hi" in (good.summary or "")
    assert (unknown.decision, unknown.server_id, unknown.target) == ("unknown", None, "box.nothing")
    assert (late.outcome, late.delivery) == ("error", "unknown")
    assert CANARY not in json.dumps([str(row) for row in await run.rows()])


@pytest.mark.req("NFR-SEC4")
async def test_a_cancelled_call_leaves_its_row(single, toolbox):
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    server.gate.clear()
    params = {"name": Raw(b'"box.echo"')}
    call = tool_call(run.session, run.junction.snapshot, "box.echo", params)
    running = asyncio.ensure_future(call.snapshot.handle(call))
    await until(lambda: server.calls)
    call.cancel("nobody wants it")
    await running
    (row,) = await run.rows(kind="call")
    assert (row.outcome, row.delivery) == ("cancelled", "unknown")


async def test_in_strict_mode_the_intent_is_stored_before_anything_is_sent(platform, toolbox):
    run = await platform(audit="strict")
    server = await toolbox()
    await run.add("box", server)
    server.gate.clear()
    call = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: server.calls)
    (intent,) = [
        row
        for row in await run.store.audit.open_intents([run.audit.writer])
        if row.action == "tools/call"
    ]
    server.gate.set()
    assert (await call).kind is OutcomeKind.RESULT
    rows = await run.rows(action="tools/call")
    assert [(row.kind, row.closes) for row in rows] == [
        ("intent", None),
        ("outcome", f"{intent.writer}:{intent.seq}"),
    ]


async def test_in_strict_mode_nothing_is_called_without_the_audit(single, toolbox, monkeypatch):
    run = await single(audit="strict")
    server = await toolbox()
    await run.add("box", server)

    async def broken(*_: object, **__: object) -> str:
        raise StoreUnavailable("no")

    monkeypatch.setattr(run.audit, "intent", broken)
    outcome = await run.call("box.echo")
    assert outcome.delivery is Delivery.NOT_SENT
    assert server.calls == 0
    with pytest.raises(StoreUnavailable):
        await run.registry.register(registration("two", server), ADMIN)
    assert [record.name for record in run.registry.all()] == ["box"], "nor is anything changed"
