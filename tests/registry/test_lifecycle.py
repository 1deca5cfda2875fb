"""Servers come, go, are renamed and removed at run time, and everything survives a restart."""

import asyncio
import json
import sys

import pytest
from tests.plugin_http import stdio_entry
from tests.plugin_registry import ADMIN, registration
from tests.registry.toolbox import tool, until

from mcp_junction.errors import (
    AlreadyExists,
    FileOwned,
    InvalidChange,
    NotFound,
    VersionConflict,
)
from mcp_junction.registry import registry
from mcp_junction.upstream.outcome import Delivery, OutcomeKind


@pytest.mark.req("NFR-P1")
async def test_a_server_is_registered_connected_discovered_and_served(platform, toolbox):
    run = await platform()
    server = await toolbox([tool("echo"), tool("other")])
    server.answers.clear()
    answered = await run.registry.register(registration("box", server), ADMIN)
    assert answered.status == "CONNECTING", "however slow the server"
    server.answers.set()
    record = await run.until("box", "CONNECTED")
    assert (record.reachable, record.authenticated, record.healthy) == (True, True, True)
    assert run.listed() == ["box.echo", "box.other"]
    outcome = await run.call("box.echo", word="hi")
    assert outcome.kind is OutcomeKind.RESULT
    assert b"hi" in bytes(outcome.payload)
    assert run.registry.find(record.id).name == "box"
    assert [found.name for found in run.registry.all(status="CONNECTED")] == ["box"]
    assert run.registry.all(status="ERROR") == []


async def test_without_auto_connect_it_waits_to_be_connected(single, toolbox):
    run = await single()
    server = await toolbox()
    record = await run.registry.register(registration("box", server), ADMIN, auto_connect=False)
    assert record.status == "DISCONNECTED"
    assert server.openings == 0
    assert await run.registry.connect("box", ADMIN) == ("CONNECTED", "connected")
    status, words = await run.registry.connect("box", ADMIN)
    assert status == "CONNECTED"
    assert "already" in words


async def test_a_name_is_given_once(platform, toolbox):
    run = await platform()
    server = await toolbox()
    await run.add("box", server)
    with pytest.raises(AlreadyExists):
        await run.registry.register(registration("box", server), ADMIN)
    with pytest.raises(NotFound):
        run.registry.find("nobody")


async def test_what_was_registered_is_there_after_a_restart_before_its_server_is(platform, toolbox):
    run = await platform()
    server = await toolbox([tool("echo", "says it again")])
    await run.add("box", server)
    await run.registry.refresh("box", ADMIN)
    server.answers.clear()  # it hangs from now on
    run = await platform()
    assert run.registry.find("box").status == "CONNECTING"
    assert run.listed() == ["box.echo"], "the stored catalog is served"
    waiting = asyncio.ensure_future(run.call("box.echo", n=1))
    await asyncio.sleep(0.05)
    assert not waiting.done(), "a call waits for the first connection"
    server.answers.set()
    assert (await waiting).kind is OutcomeKind.RESULT


async def test_who_was_disconnected_stays_so_after_a_restart(platform, toolbox):
    run = await platform()
    server = await toolbox()
    await run.add("box", server)
    await run.add("on", server)
    assert await run.registry.disconnect("box", ADMIN) == ("DISCONNECTED", 0)
    run = await platform()
    await run.until("on", "CONNECTED")
    assert run.registry.find("box").status == "DISCONNECTED"
    assert run.listed() == ["on.echo"]
    outcome = await run.call("box.echo")
    assert outcome.delivery is Delivery.NOT_SENT
    assert b"not available" in bytes(outcome.payload)
    assert (await run.registry.connect("box", ADMIN))[0] == "CONNECTED"
    assert run.listed() == ["box.echo", "on.echo"]


@pytest.mark.req("AG-US6-AC3", "AG-US6-AC4")
async def test_a_disconnect_waits_for_the_calls_under_way_and_counts_them(single, toolbox):
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    server.gate.clear()
    calls = [asyncio.ensure_future(run.call("box.echo", n=n)) for n in range(3)]
    await until(lambda: server.calls >= 3)
    ending = asyncio.ensure_future(run.registry.disconnect("box", ADMIN))
    await until(lambda: run.listed() == [])
    late = await run.call("box.echo")
    assert late.delivery is Delivery.NOT_SENT, "no new call gets there"
    assert not ending.done()
    server.gate.set()
    assert await ending == ("DISCONNECTED", 3)
    assert [(await call).kind for call in calls] == [OutcomeKind.RESULT] * 3


@pytest.mark.req("AG-US6-AC3")
async def test_a_disconnect_waits_no_longer_than_its_limit_for_calls_that_do_not_end(
    single, toolbox, monkeypatch
):
    assert registry.DRAIN == 30.0
    monkeypatch.setattr(registry, "DRAIN", 0.3)
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    server.gate.clear()
    call = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: server.calls)
    ending = asyncio.ensure_future(run.registry.disconnect("box", ADMIN))
    await until(lambda: run.junction.servers["box"].is_shut)
    assert not ending.done(), "it waits first"
    assert await asyncio.wait_for(ending, 10) == ("DISCONNECTED", 1)
    assert (await call).delivery is Delivery.UNKNOWN, "it was sent, and is answered"


async def test_by_force_it_does_not_wait_and_every_call_is_answered(single, toolbox):
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    server.gate.clear()
    call = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: server.calls)
    assert await run.registry.disconnect("box", ADMIN, force=True) == ("DISCONNECTED", 1)
    outcome = await call
    assert outcome.kind is not OutcomeKind.RESULT
    assert outcome.delivery is Delivery.UNKNOWN


async def test_a_rename_is_one_step_and_no_call_is_lost(platform, toolbox):
    run = await platform()
    server = await toolbox()
    before = await run.add("box", server)
    server.gate.clear()
    call = asyncio.ensure_future(run.call("box.echo", n=1))
    await until(lambda: server.calls)
    after = await run.registry.change("box", {"name": "crate"}, ADMIN, if_match=before.version)
    assert (after.id, after.name, after.status) == (before.id, "crate", "CONNECTED")
    assert after.version == before.version + 1
    assert run.listed() == ["crate.echo"]
    server.gate.set()
    assert (await call).kind is OutcomeKind.RESULT
    assert (await run.call("crate.echo")).kind is OutcomeKind.RESULT
    assert server.openings == 1, "its link stayed"
    with pytest.raises(NotFound):
        run.registry.find("box")
    run = await platform()
    assert run.listed() == ["crate.echo"]


async def test_a_change_reconnects_only_for_another_connection(single, toolbox):
    run = await single()
    first, second = await toolbox(), await toolbox([tool("new")])
    await run.add("box", first, description="one")
    await run.registry.change("box", {"description": "two", "timeout_ms": 5000}, ADMIN)
    assert first.openings == 1
    assert run.registry.find("box").description == "two"
    view = run.junction.snapshot.catalog.view(run.session.spelling)
    assert view.find("box.echo").timeout == 5.0
    await run.registry.change("box", {"connection_config": {"url": second.url}}, ADMIN)
    await run.until("box", "CONNECTED")
    assert second.openings == 1
    assert run.listed() == ["box.new"]


async def test_a_change_names_the_version_it_was_made_from(platform, toolbox):
    run = await platform()
    record = await run.add("box", await toolbox())
    await run.registry.change("box", {"description": "x"}, ADMIN, if_match=record.version)
    with pytest.raises(VersionConflict):
        await run.registry.change("box", {"description": "y"}, ADMIN, if_match=record.version)
    with pytest.raises(InvalidChange):
        await run.registry.change("box", {"name": "No Name"}, ADMIN)
    assert run.registry.find("box").description == "x"


async def test_disabling_ends_it_and_enabling_brings_it_back(single, toolbox):
    run = await single()
    await run.add("box", await toolbox())
    off = await run.registry.change("box", {"enabled": False}, ADMIN)
    assert (off.enabled, off.status) == (False, "DISCONNECTED")
    assert run.listed() == []
    assert "disabled" in (await run.registry.connect("box", ADMIN))[1]
    await run.registry.change("box", {"enabled": True}, ADMIN)
    await run.until("box", "CONNECTED")
    assert run.listed() == ["box.echo"]


async def test_a_removed_server_is_gone_for_good(platform, toolbox):
    run = await platform()
    server = await toolbox()
    record = await run.add("box", server)
    server.gate.clear()
    call = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: server.calls)
    await run.registry.remove("box", ADMIN)
    assert run.listed() == []
    assert b"unknown tool" in bytes((await run.call("box.echo")).payload)
    server.gate.set()
    assert (await call).kind is OutcomeKind.RESULT, "what was under way has ended well"
    assert await run.store.tools.all(record.id) == []
    with pytest.raises(NotFound):
        await run.registry.history(record.id)
    run = await platform()
    assert run.registry.all() == []


async def test_the_files_servers_are_recorded_and_are_the_files(platform, toolbox):
    server = await toolbox()
    run = await platform({"Of The File": {"url": server.url}})
    record = await run.until("Of The File", "CONNECTED")
    assert record.origin == "file"
    assert record.transport_type == "HTTP"
    with pytest.raises(FileOwned):
        await run.registry.change("Of The File", {"description": "x"}, ADMIN)
    with pytest.raises(FileOwned):
        await run.registry.remove("Of The File", ADMIN)
    again = await platform({"Of The File": {"url": server.url}})
    assert again.registry.find("Of The File").id == record.id
    assert again.listed() == ["Of The File.echo"]
    gone = await platform({})
    assert gone.registry.all() == []


async def test_a_variable_that_is_not_set_fails_that_server_alone(single, toolbox):
    server = await toolbox()
    entry = {"url": server.url, "headers": {"x-token": "${NOT_SET_HERE}"}}
    run = await single({"bad": entry, "good": {"url": server.url}})
    await run.until("good", "CONNECTED")
    record = await run.until("bad", "ERROR")
    assert "NOT_SET_HERE" in (record.error_message or "")
    await run.registry.register(
        registration(
            "worse", connection_config={"url": server.url, "headers": {"x-a": "${ALSO_NOT_SET}"}}
        ),
        ADMIN,
    )
    record = await run.until("worse", "ERROR")
    assert "ALSO_NOT_SET" in (record.error_message or "")


async def test_a_stdio_server_is_registered_by_its_program(single):
    run = await single(environ={"PATH": "/usr/bin:/bin"})
    entry = stdio_entry()
    made = registration("peer", connection_config=entry, transport_type="STDIO")
    await run.registry.register(made, ADMIN)
    await run.until("peer", "CONNECTED")
    assert run.listed()
    await run.registry.remove("peer", ADMIN)


@pytest.mark.parametrize(
    ("kind", "config", "place"),
    [
        ("STDIO", {"command": "/bin/sh", "args": ["-c", "true"]}, "command"),
        ("HTTP", {"url": "http://169.254.169.254/latest"}, "url"),
        ("HTTP", {"url": "http://10.0.0.1/mcp"}, "url"),
        ("SSE", {"url": "http://example.com/sse"}, "url"),
    ],
)
async def test_what_may_not_be_reached_or_run_is_refused_before_it_is_stored(
    single, kind, config, place
):
    run = await single()
    made = registration("bad", connection_config=config, transport_type=kind)
    with pytest.raises(InvalidChange) as refused:
        await run.registry.register(made, ADMIN)
    assert refused.value.problems[0].path.endswith(place)
    assert await run.store.servers.all() == []


async def test_a_list_of_programs_limits_what_is_registered_and_what_is_run(single):
    run = await single(stdio_allow="nothing-else")
    entry = {"command": sys.executable, "args": ["-c", "pass"]}
    made = registration("bad", connection_config=entry, transport_type="STDIO")
    with pytest.raises(InvalidChange, match="stdio_allow"):
        await run.registry.register(made, ADMIN)


async def test_a_masked_value_that_is_sent_back_keeps_the_old_one(single, toolbox):
    run = await single()
    server = await toolbox()
    config = {"url": server.url, "headers": {"x-key": "canary-5ecret"}}
    await run.registry.register(registration("box", connection_config=config), ADMIN)
    body = {"connection_config": {"url": server.url, "headers": {"x-key": "***", "x-new": "1"}}}
    record = await run.registry.change("box", body, ADMIN)
    assert record.connection_config["headers"] == {"x-key": "canary-5ecret", "x-new": "1"}
    rows = json.dumps([str(row) for row in await run.rows()])
    told = json.dumps([str(event) for event in await run.events()])
    assert "canary" not in rows + told


async def test_a_server_that_is_reached_another_way_was_never_disconnected(single, toolbox):
    run = await single()
    first, second = await toolbox(), await toolbox()
    await run.add("box", first)
    second.answers.clear()
    await run.registry.change("box", {"connection_config": {"url": second.url}}, ADMIN)
    assert run.registry.find("box").status == "CONNECTING"
    assert run.listed() == ["box.echo"], "what it offers is known"
    call = asyncio.ensure_future(run.call("box.echo"))
    await asyncio.sleep(0.05)
    assert not call.done()
    second.answers.set()
    assert (await call).kind is OutcomeKind.RESULT
    assert (first.calls, second.calls) == (0, 1)
    events = [row.event_type for row in await run.registry.history("box")]
    assert events == ["CONNECTED", "CONNECTED"]


async def test_a_server_that_cannot_be_started_again_is_connected_by_hand(single, toolbox):
    server = await toolbox()
    await server.stop()
    run = await single({"box": {"url": server.url, "junction": {"restart": False}}})
    await run.until("box", "ERROR")
    await server.start()
    await asyncio.sleep(0.3)
    assert run.registry.find("box").status == "ERROR", "it was to stay down"
    assert (await run.registry.connect("box", ADMIN))[0] == "CONNECTED"
