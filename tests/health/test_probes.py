"""The schedule of health checks, by a clock of our own."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mcp_junction.health.probes import Probes, ProbeSchedule
from mcp_junction.health.verdict import CallKind, HealthFacts, HealthVerdict, ProbeKind, ProbeResult
from mcp_junction.testing.fakes import FakeClock


class Ward:
    """Servers under watch, and what is told of them."""

    def __init__(self, chance: float = 0.5) -> None:
        self.clock = FakeClock()
        self.told: list[tuple[str, HealthVerdict, HealthFacts]] = []
        self.probes = Probes(self.clock, self._tell, ProbeSchedule(30.0, 5.0), lambda: chance)
        self.times: dict[str, list[float]] = {}

    def _tell(self, *news: Any) -> None:
        self.told.append(news)

    def watch(self, key: str, kind: ProbeKind = ProbeKind.GOOD, takes: float = 0.0) -> None:
        async def probe() -> ProbeResult:
            self.times.setdefault(key, []).append(self.clock.now())
            await self.clock.sleep(takes)
            return ProbeResult(kind, detail="as told")

        self.probes.watch(key, probe)

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        return [(key, verdict.value) for key, verdict, _ in self.told]


@pytest.fixture
async def ward() -> AsyncIterator[Ward]:
    made = Ward()
    yield made
    await made.probes.close()
    assert made.clock.sleepers == 0


async def test_checks_come_at_the_interval(ward):
    ward.watch("a")
    await ward.clock.advance(200)
    assert ward.times["a"] == [15, 45, 75, 105, 135, 165, 195]
    assert ward.told == []


@pytest.mark.parametrize(("chance", "times"), [(0.0, [0, 27, 54]), (1.0, [30, 63, 96])])
async def test_chance_spreads_them(chance, times):
    ward = Ward(chance)
    ward.watch("a")
    await ward.clock.advance(times[-1] + 0.5)
    assert ward.times["a"] == pytest.approx(times)
    await ward.probes.close()


async def test_a_check_is_given_up_in_time_and_counts_as_failed(ward):
    ward.watch("slow", takes=1000)
    await ward.clock.advance(15 + 4.9)
    assert ward.probes.facts("slow").last_check is None
    await ward.clock.advance(0.2)
    assert ward.probes.facts("slow").last_check == 20
    assert ward.probes.facts("slow").reachable is False
    await ward.clock.advance(100)
    assert ward.verdicts == [("slow", "degraded"), ("slow", "failed")]
    assert ward.times["slow"] == [15, 50, 85], "and it is watched no more"
    assert ward.probes.watched == frozenset()


async def test_a_slow_server_holds_up_no_other(ward):
    ward.watch("slow", takes=4)
    ward.watch("quick", takes=0.25)
    await ward.clock.advance(60)
    assert ward.times["slow"] == [15, 49]
    assert ward.times["quick"] == [15, 45.25]
    assert ward.probes.facts("slow").response_time_ms == 4000
    assert ward.probes.facts("quick").response_time_ms == 250


async def test_verdicts_are_told_once_each(ward, caplog):
    ward.watch("bad", ProbeKind.SERVER_ERROR)
    with caplog.at_level(logging.WARNING, "mcp_junction.health"):
        await ward.clock.advance(16)
        assert ward.told == []
        assert "(server_error, 1 in a row): as told" in caplog.text
        await ward.clock.advance(200)
    assert ward.verdicts == [("bad", "degraded"), ("bad", "failed")]
    _, _, facts = ward.told[-1]
    assert (facts.reachable, facts.healthy, facts.detail) == (True, False, "as told")


async def test_a_new_connection_begins_anew(ward):
    ward.watch("x", ProbeKind.UNREACHABLE)
    await ward.clock.advance(100)
    assert ward.verdicts[-1] == ("x", "failed")
    ward.probes.unwatch("x")
    ward.watch("x")
    assert ward.verdicts[-1] == ("x", "healthy")
    await ward.clock.advance(100)
    assert len(ward.told) == 3
    assert ward.probes.facts("x").healthy is True


async def test_what_is_not_watched_is_not_checked(ward):
    ward.watch("a", takes=2)
    await ward.clock.advance(16)
    ward.probes.unwatch("a", refused=True)
    await ward.clock.advance(100)
    assert ward.times["a"] == [15]
    facts = ward.probes.facts("a")
    assert (facts.reachable, facts.authenticated, facts.last_check) == (True, False, None)


async def test_to_watch_twice_is_to_watch_once(ward):
    ward.watch("a")
    ward.watch("a")
    await ward.clock.advance(50)
    assert ward.times["a"] == [15, 45]


async def test_a_server_that_is_removed_leaves_nothing(ward):
    ward.watch("a", takes=3)
    await ward.clock.advance(16)
    ward.probes.forget("a")
    await ward.clock.advance(100)
    assert ward.probes.watched == frozenset()
    assert ward.probes.facts("a").reachable is None


async def test_calls_are_heard(ward):
    ward.watch("a")
    for _ in range(10):
        ward.probes.observe_call("a", CallKind.FAILED)
    assert ward.verdicts == [("a", "degraded")]
    for _ in range(20):
        ward.probes.observe_call("a", CallKind.GOOD)
    assert ward.verdicts == [("a", "degraded"), ("a", "healthy")]


async def test_what_others_found_is_heard(ward):
    for _ in range(2):
        ward.probes.observe_probe("a", ProbeResult(ProbeKind.UNREACHABLE))
    assert ward.verdicts == [("a", "degraded")]


async def test_a_fault_of_our_own_is_not_the_servers(ward, caplog):
    async def faulty() -> ProbeResult:
        raise KeyError("ours")

    ward.probes.watch("a", faulty)
    await ward.clock.advance(200)
    assert ward.told == []
    assert ward.probes.watched == {"a"}
    assert "a fault of Junction's own" in caplog.text


async def test_a_listener_may_stop_the_watch_it_is_told_of(ward):
    ward.probes._on_verdict = lambda key, verdict, facts: ward.probes.unwatch(key)
    ward.watch("a", ProbeKind.TIMEOUT)
    await ward.clock.advance(200)
    assert ward.times["a"] == [15, 45]


async def test_it_can_be_switched_off(ward):
    ward.probes.records["a"].enabled = False
    assert ward.probes.facts("a").enabled is False


async def test_a_thousand_servers_are_checked_side_by_side():
    clock, times = FakeClock(), []
    chances = iter([n / 1000 for n in range(1000)])
    probes = Probes(clock, lambda *_: None, ProbeSchedule(30.0, 5.0), lambda: next(chances, 0.5))

    async def probe() -> ProbeResult:
        times.append(clock.now())
        await asyncio.sleep(0)
        return ProbeResult(ProbeKind.GOOD)

    for n in range(1000):
        probes.watch(f"s{n}", probe)
    await clock.advance(29.99)
    assert len(times) == 1000
    assert max(sum(second <= t < second + 1 for t in times) for second in range(30)) < 50
    await probes.close()
