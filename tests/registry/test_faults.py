"""Faults around the registry: servers killed and started again under load, and the store away.

The short forms; `make soak` runs the first for a minute."""

import asyncio
import random
import time
from collections import Counter

import pytest
from tests.plugin_registry import ADMIN, registration
from tests.registry.toolbox import until

from mcp_junction.errors import StoreUnavailable
from mcp_junction.upstream.connecting import RECONNECT_WINDOW
from mcp_junction.upstream.outcome import Delivery, OutcomeKind

RATE = 100
STEADY, SHAKY = 4, 2


class Traffic:
    """Calls at a steady rate to one server; what became of each."""

    def __init__(self, run, name: str, rate: float) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()
        self.started = 0
        self._run = run
        self._rate = rate
        self._calls: set[asyncio.Task] = set()

    async def flow(self, until: asyncio.Event) -> None:
        while not until.is_set():
            self.started += 1
            task = asyncio.ensure_future(self._call())
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            await asyncio.sleep(1 / self._rate)
        await asyncio.gather(*self._calls)

    async def _call(self) -> None:
        outcome = await self._run.call(f"{self.name}.echo", n=self.started)
        said = "" if outcome.delivery is None else outcome.delivery.value
        self.outcomes[outcome.kind.value + said] += 1


async def shake(run, servers: dict, times: int) -> list[float]:
    """Kill servers by turns and start them again; how long each took to be back."""
    took = []
    for _ in range(times):
        name = random.choice(list(servers))
        await servers[name].stop()
        await asyncio.sleep(random.uniform(0.1, 0.5))
        await servers[name].start()
        began = time.monotonic()
        async with asyncio.timeout(60):
            while (await run.call(f"{name}.echo")).kind is not OutcomeKind.RESULT:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        took.append(time.monotonic() - began)
        await asyncio.sleep(0.2)
    return took


class Standing:
    """Looks at servers' states, again and again: how much of the time they were connected."""

    def __init__(self, run, names) -> None:
        self._run = run
        self._names = list(names)
        self._looks = self._connected = 0

    @property
    def share(self) -> float:
        return self._connected / self._looks

    async def look(self, until: asyncio.Event) -> None:
        while not until.is_set():
            for name in self._names:
                self._looks += 1
                self._connected += self._run.registry.find(name).status == "CONNECTED"
            await asyncio.sleep(0.02)


async def ordeal(platform, toolbox, times: int) -> None:
    """Prints what it saw: `pytest -rP` shows it."""
    run = await platform()
    steady = {f"steady{n}": await toolbox() for n in range(STEADY)}
    shaky = {f"shaky{n}": await toolbox() for n in range(SHAKY)}
    for name, server in (steady | shaky).items():
        await run.add(name, server)
    rate = RATE / (STEADY + SHAKY)
    traffic = {name: Traffic(run, name, rate) for name in steady | shaky}
    end, began = asyncio.Event(), time.monotonic()
    standing = Standing(run, steady)
    flows = [asyncio.ensure_future(one.flow(end)) for one in traffic.values()]
    flows.append(asyncio.ensure_future(standing.look(end)))
    took = await shake(run, shaky, times)
    end.set()
    await asyncio.gather(*flows)
    assert standing.share > 0.999
    for name in steady:
        assert traffic[name].outcomes == {"result": traffic[name].started}, name
    for name in shaky:
        seen = traffic[name].outcomes
        assert sum(seen.values()) == traffic[name].started, "every call is answered"
        assert set(seen) <= {"result", "errornot_sent", "errorunknown"}, seen
    lost = back = 0
    for name in shaky:
        await run.until(name, "CONNECTED")
        rows = await run.registry.history(name, limit=1000)
        lost += sum(row.event_type == "ERROR" for row in rows)
        back += sum(row.event_type == "RECONNECT" for row in rows)
    assert lost >= len(took) / 2, "they were lost, and that was seen"
    assert back > 0.95 * lost
    calls = await run.rows(kind="call")
    made = sum(one.started for one in traffic.values())
    assert len(calls) >= made, "all are in the audit"
    failed = sum(traffic[name].started - traffic[name].outcomes["result"] for name in steady)
    seconds = time.monotonic() - began
    print(f"{made} calls in {seconds:.0f} s, {failed} of {STEADY} steady servers failed")
    print(f"steady servers connected {standing.share:.4%} of the time")
    print(f"{len(took)} restarts, {lost} losses seen, {back} came back")
    print(f"answered again after {max(took):.2f} s at most, p50 {sorted(took)[len(took) // 2]:.2f}")
    print("shaky:", {name: dict(traffic[name].outcomes) for name in shaky})


@pytest.mark.req("NFR-R1", "NFR-R2", "NFR-R3", "NFR-R4")
async def test_servers_killed_under_load_come_back_and_harm_no_other(platform, toolbox):
    await ordeal(platform, toolbox, 8)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.req("NFR-R1", "NFR-R2", "NFR-R3", "NFR-R4")
async def test_servers_killed_under_load_for_about_a_minute(platform, toolbox):
    await ordeal(platform, toolbox, 100)


class Away:
    """The store says no for as long as `is_away`."""

    def __init__(self, monkeypatch, store) -> None:
        self.is_away = False
        write = store._database.write

        async def perhaps(script, **how):
            if self.is_away:
                script.close()
                raise StoreUnavailable("the store is away")
            return await write(script, **how)

        monkeypatch.setattr(store._database, "write", perhaps)


@pytest.mark.req("F-16")
async def test_while_the_store_is_away_calls_go_on_and_changes_are_refused(
    platform, toolbox, monkeypatch
):
    run = await platform()
    server = await toolbox()
    await run.add("box", server)
    away = Away(monkeypatch, run.store)
    away.is_away = True
    assert (await run.call("box.echo")).kind is OutcomeKind.RESULT
    with pytest.raises(StoreUnavailable):
        await run.registry.register(registration("two", server), ADMIN)
    with pytest.raises(StoreUnavailable):
        await run.registry.change("box", {"name": "other"}, ADMIN)
    with pytest.raises(StoreUnavailable):
        await run.registry.disconnect("box", ADMIN)
    assert run.listed() == ["box.echo"]
    assert run.registry.find("box").status == "CONNECTED"
    await server.stop()
    while run.registry.find("box").status != "ERROR":
        await run.call("box.echo")
    await server.start()
    await run.until("box", "CONNECTED")
    assert (await run.call("box.echo")).kind is OutcomeKind.RESULT
    away.is_away = False
    async with asyncio.timeout(30):
        while len(rows := await run.registry.history("box")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await until(lambda: not run.audit.is_failing)
    assert [row.event_type for row in rows[::-1]] == ["CONNECTED", "ERROR", "RECONNECT"]
    await run.registry.register(registration("two", server), ADMIN)
    await run.until("two", "CONNECTED")
    assert len(await run.rows(kind="call")) >= 3, "nothing of the outage is lost"
    assert run.audit.lost == 0
    assert run.bus.lost == 0


@pytest.mark.req("F-04")
async def test_a_server_that_forgot_us_is_opened_once_more_and_the_call_succeeds(single, toolbox):
    run = await single()
    server = await toolbox()
    server.needs_session = True
    await run.add("box", server)
    server.session = "another"
    assert (await run.call("box.echo")).kind is OutcomeKind.RESULT
    assert server.openings == 2
    assert run.registry.find("box").status == "CONNECTED"


async def lose_for_long(run, server) -> None:
    """Take a server away, and let the time pass in which calls wait for it."""
    await server.stop()
    while run.registry.find("box").status != "ERROR":
        await run.call("box.echo")
    run.junction.servers["box"]._gate._down_since -= 2 * RECONNECT_WINDOW


async def test_a_server_that_stays_down_refuses_calls_at_once_after_the_window(single, toolbox):
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    await lose_for_long(run, server)
    async with asyncio.timeout(RECONNECT_WINDOW / 2):
        outcome = await run.call("box.echo")
    assert outcome.delivery is Delivery.NOT_SENT


@pytest.mark.req("R-RECONNECT")
async def test_a_call_waits_while_a_server_that_is_back_is_asked_for_its_lists(single, toolbox):
    run = await single()
    server = await toolbox()
    await run.add("box", server)
    await lose_for_long(run, server)
    server.listing.clear()
    lists = server.lists
    await server.start()
    run.junction.servers["box"]._retry_now.set()
    await until(lambda: server.lists > lists)
    call = asyncio.ensure_future(run.call("box.echo"))
    await until(lambda: call.done() or run.junction.servers["box"].calls > 0)
    server.listing.set()
    assert (await call).kind is OutcomeKind.RESULT


@pytest.mark.req("R-RECONNECT", "R-ISOLATE")
async def test_a_hundred_calls_wait_for_a_lost_server_and_no_more(single, toolbox):
    run = await single()
    server, other = await toolbox(), await toolbox()
    await run.add("box", server)
    await run.add("other", other)
    server.answers.clear()
    await run.registry.disconnect("box", ADMIN, force=True)
    connecting = asyncio.ensure_future(run.registry.connect("box", ADMIN))
    await run.until("box", "CONNECTING")
    calls = [asyncio.ensure_future(run.call("box.echo")) for _ in range(150)]
    await until(lambda: run.junction.servers["box"].calls >= 100)
    await until(lambda: sum(call.done() for call in calls) >= 50)
    await asyncio.sleep(0.1)
    assert sum(call.done() for call in calls) == 50
    assert (await run.call("other.echo")).kind is OutcomeKind.RESULT
    server.answers.set()
    assert (await connecting)[0] == "CONNECTED"
    done = Counter([(await call).kind for call in calls])
    assert done == {OutcomeKind.RESULT: 100, OutcomeKind.ERROR: 50}
