"""Servers are checked and their calls counted, and their status follows; lost ones come back."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.http.origin import Origin, Visit
from tests.plugin_registry import ADMIN, registration
from tests.registry.toolbox import tool, until

from mcp_junction.health.probes import ProbeSchedule
from mcp_junction.registry import health_watch as watch
from mcp_junction.tasks import Supervision
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, OutcomeKind

QUICK = {"health_interval_ms": 30, "health_timeout_ms": 200}


async def happened(run, name: str) -> list[str]:
    """The history of a server, oldest first."""
    return [row.event_type for row in reversed(await run.registry.history(name))]


@pytest.mark.req("AG-US5-AC1", "AG-US5-AC3", "NFR-P6")
async def test_a_server_without_a_health_url_is_pinged_at_the_set_interval(single, toolbox):
    run = await single(**QUICK)
    server = await toolbox()
    await run.add("box", server)
    await until(lambda: server.pings >= 3)
    record = run.registry.find("box")
    assert record.last_health_check is not None
    assert record.response_time_ms is not None
    assert (await single()).registry.state().health_check_interval_seconds == 30


@pytest.mark.req("AG-US5-AC2")
async def test_a_health_url_is_asked_instead_and_its_4xx_only_warn(single, toolbox):
    run = await single(**QUICK)
    server = await toolbox()
    server.health_status = 404
    url = server.url.replace("/mcp", "/health")
    await run.add("box", server, health_check_url=url)
    await until(lambda: server.health_checks >= 5)
    record = run.registry.find("box")
    assert record.status == "CONNECTED"
    assert server.pings == 0
    assert "404" in (record.error_message or "")
    server.health_status = 401
    checks = server.health_checks
    await until(lambda: server.health_checks >= checks + 2)
    record = run.registry.find("box")
    assert (record.reachable, record.authenticated, record.enabled) == (True, False, True)


@pytest.mark.req("R-QUOTA")
async def test_a_server_whose_list_has_no_end_is_degraded_and_says_why(
    single, toolbox, monkeypatch
):
    monkeypatch.setattr("mcp_junction.catalog.discovery.MAX_ITEMS", 2)
    run = await single()
    server = await toolbox(tools=[tool("a"), tool("b"), tool("c")])
    await run.registry.register(registration("box", server), ADMIN)
    await run.until("box", "DEGRADED")
    assert run.registry.find("box").error_message == "tools/list has more than 2 items"
    assert run.listed() == ["box.a", "box.b"]
    told = [event.data for event in await run.events("server.status_changed")]
    (event,) = [data for data in told if data["status"] == "DEGRADED"]
    assert event["message"] == "tools/list has more than 2 items"
    server.tools = [tool("a")]
    await run.registry.refresh("box", ADMIN)
    await run.until("box", "CONNECTED")
    assert run.registry.find("box").error_message is None


@pytest.mark.req("AG-US5-AC4", "AG-US5-AC5")
async def test_two_failed_checks_degrade_three_reconnect_and_it_comes_back(platform, toolbox):
    run = await platform(health_interval_ms=60, health_timeout_ms=500)
    server = await toolbox()
    url = server.url.replace("/mcp", "/health")
    await run.add("box", server, health_check_url=url)
    server.health_status = 500
    await run.until("box", "DEGRADED")
    assert run.listed() == ["box.echo"], "it is still offered"
    assert (await run.call("box.echo")).kind is OutcomeKind.RESULT
    await until(lambda: server.openings >= 2)
    server.health_status = 200
    await run.until("box", "CONNECTED")
    await asyncio.sleep(0.3)
    assert run.registry.find("box").status == "CONNECTED"
    told = [event.data["status"] for event in await run.events("server.status_changed")]
    at = told.index("DEGRADED")
    assert told[at : at + 2] == ["DEGRADED", "ERROR"]
    assert told[-1] == "CONNECTED"
    events = await happened(run, "box")
    assert events[:2] == ["CONNECTED", "ERROR"]
    assert events[-1] == "RECONNECT"
    stored = await run.store.servers.get("box")
    assert stored.status == "CONNECTED"


@pytest.mark.req("AG-US5-AC8")
async def test_a_check_that_is_not_answered_counts_as_failed(single, toolbox):
    run = await single(health_interval_ms=30, health_timeout_ms=60)
    server = await toolbox()
    await run.add("box", server)
    server.answers.clear()
    record = await run.until("box", "DEGRADED", "ERROR")
    assert record.healthy is False
    assert (await single()).junction.settings.health_timeout_ms == 5000, "the default"


async def test_a_server_that_works_for_somebody_is_not_ended_for_its_silence(
    single, toolbox, monkeypatch
):
    run = await single(health_interval_ms=20, health_timeout_ms=40)
    server = await toolbox()
    await run.add("box", server)
    server.gate.clear()
    call = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: server.calls)
    server.answers.clear()
    await asyncio.sleep(0.5)
    record = run.registry.find("box")
    assert record.status == "CONNECTED"
    assert not call.done()
    monkeypatch.setattr(watch, "BUSY", 0.0)
    await run.until("box", "ERROR")
    assert (await call).delivery is Delivery.UNKNOWN, "nor is it waited for without end"


@pytest.mark.req("AG-US5-AC3")
async def test_calls_that_fail_degrade_and_calls_that_succeed_make_it_well_again(single, toolbox):
    run = await single()
    server = await toolbox()
    await run.registry.register(registration("box", server, timeout_ms=300), ADMIN)
    await run.until("box", "CONNECTED")
    server.gate.clear()
    await asyncio.gather(*(run.call("box.echo") for _ in range(10)))
    record = await run.until("box", "DEGRADED")
    assert record.error_rate == 1.0
    assert "10 of its last 10" in (record.error_message or "")
    server.gate.set()
    for _ in range(20):
        assert (await run.call("box.echo")).kind is OutcomeKind.RESULT
    record = await run.until("box", "CONNECTED")
    assert (record.healthy, record.error_rate) == (True, 0.0)


@pytest.mark.req("NFR-R2")
async def test_connections_that_are_lost_come_back_by_themselves_again_and_again(single, toolbox):
    run = await single()
    servers = {f"box{n}": await toolbox() for n in range(8)}
    for name, server in servers.items():
        await run.add(name, server)
    for _ in range(3):
        for server in servers.values():
            await server.stop()
        for name in servers:
            while run.registry.find(name).status != "ERROR":
                assert (await run.call(f"{name}.echo")).kind is OutcomeKind.ERROR
        for server in servers.values():
            await server.start()
        for name in servers:
            await run.until(name, "CONNECTED")
    rows = [event for name in servers for event in await happened(run, name)]
    assert rows.count("ERROR") == 24, "each loss is one"
    assert rows.count("RECONNECT") > 0.95 * 24


@pytest.mark.req("NFR-R2", "NFR-R4", "AG-US6-AC5")
async def test_a_lost_server_comes_back_and_calls_made_meanwhile_wait_for_it(platform, toolbox):
    run = await platform()
    server, other = await toolbox(), await toolbox()
    await run.add("box", server)
    await run.add("other", other)
    await server.stop()
    while run.registry.find("box").status != "ERROR":
        assert (await run.call("box.echo")).kind is OutcomeKind.ERROR
    assert run.listed() == ["other.echo"]
    assert (await run.call("other.echo")).kind is OutcomeKind.RESULT
    waiting = [asyncio.ensure_future(run.call("box.echo", n=n)) for n in range(5)]
    await asyncio.sleep(0.05)
    server.tools = [tool("echo"), tool("new")]
    await server.start()
    assert {(await call).kind for call in waiting} == {OutcomeKind.RESULT}
    await run.until("box", "CONNECTED")
    assert run.listed() == ["box.echo", "box.new", "other.echo"]
    events = await run.registry.history("box")
    assert events[0].event_type == "RECONNECT"
    assert events[0].details["attempts"] >= 1
    assert [row.event_type for row in events[::-1]] == ["CONNECTED", "ERROR", "RECONNECT"]


async def test_a_server_that_is_down_is_tried_again_at_once_when_it_is_connected_by_hand(
    single, toolbox
):
    run = await single()
    server = await toolbox()
    await server.stop()
    await run.registry.register(registration("box", server), ADMIN)
    await run.until("box", "ERROR")
    status, words = await run.registry.connect("box", ADMIN)
    assert status == "ERROR"
    assert words
    await server.start()
    async with asyncio.timeout(30):
        while (await run.registry.connect("box", ADMIN))[0] != "CONNECTED":
            pass


REFUSED = {"jsonrpc": "2.0", "error": {"code": -32000, "message": "table 401 is missing"}}
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}


async def _fails(single, handler) -> object:
    """What is known of a server that answers like this."""
    run = await single()
    async with Origin(handler) as origin:
        await run.registry.register(registration("box", origin), ADMIN)
        return await run.until("box", "ERROR")


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("form", ["bare", "answer", "later"])
async def test_a_server_that_refuses_our_credentials_is_known_by_its_status(single, status, form):
    async def refuse(visit: Visit) -> None:
        if form == "later" and visit.rpc == "initialize":
            visit.result(GREETING)
        elif form == "answer" and "id" in visit.message:
            error = {"code": -32000, "message": "no"}
            visit.json({"jsonrpc": "2.0", "id": visit.message["id"], "error": error}, status)
        else:
            visit.answer(status)

    record = await _fails(single, refuse)
    assert (record.reachable, record.authenticated) == (True, False)


async def test_an_error_that_only_speaks_of_401_says_nothing_of_credentials(single):
    async def refuse(visit: Visit) -> None:
        visit.json({**REFUSED, "id": visit.message.get("id")})

    record = await _fails(single, refuse)
    assert "401" in record.error_message
    assert record.authenticated is None


@pytest.mark.parametrize("link", [object(), None])
async def test_a_call_that_ends_after_its_server_was_removed_leaves_nothing(link):
    health = watch.HealthWatch(FakeClock(), ProbeSchedule(), lambda _: None, Supervision())
    definition = SimpleNamespace(id="removed")
    upstream = SimpleNamespace(definition=definition, link=link, is_shut=False)
    outcome = outcomes.result(b"{}")
    health.observe_call(SimpleNamespace(route=SimpleNamespace(upstream=upstream), outcome=outcome))
    assert not health._answered
    assert not health._records
    await health.close()
