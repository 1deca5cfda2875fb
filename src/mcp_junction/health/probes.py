"""Probes: probes servers on a schedule, counts their calls, and reports changed verdicts.

Each watched server has its own task, which sleeps, probes, and sleeps again, so that a slow probe
delays no other. The first probe comes after a random part of the interval, the rest with a little
jitter: a thousand servers are not probed at one moment.

``on_verdict(key, verdict, facts)`` is called on every change. After FAILED a server is not probed
until ``watch`` is called for a new connection, which is its owner's to make.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from mcp_junction.health.checks import Probe
from mcp_junction.health.verdict import (
    CallKind,
    HealthFacts,
    HealthRecord,
    HealthVerdict,
    ProbeKind,
    ProbeResult,
)
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import Supervision, TaskScope, wait_for_any

log = logging.getLogger("mcp_junction.health")

JITTER: Final = 0.1
OnVerdict = Callable[[str, HealthVerdict, HealthFacts], None]


class ProbeSchedule(msgspec.Struct, frozen=True):
    """How often servers are probed, and how long a probe may take; in seconds."""

    interval: float = 30.0
    timeout: float = 5.0


class Probes:
    """Keeps the health of every server, and the tasks that probe them."""

    def __init__(
        self,
        clock: Clock,
        on_verdict: OnVerdict,
        schedule: ProbeSchedule | None = None,
        chance: Callable[[], float] = random.random,
        supervision: Supervision | None = None,
    ) -> None:
        self._clock = clock
        self._on_verdict = on_verdict
        self._schedule = schedule or ProbeSchedule()
        self._chance = chance
        self.records: dict[str, HealthRecord] = {}
        """What is known of each server, by its key."""
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._tasks = TaskScope("health", supervision)

    async def close(self) -> None:
        self._watches.clear()
        await self._tasks.close()

    # -- input

    def watch(self, key: str, probe: Probe) -> None:
        """Reset a server that has connected, and probe it from now on."""
        self._cancel(key)
        record = self.record(key)
        before = record.verdict
        record.note_connected()
        watch = partial(self._watch, key, probe)
        self._watches[key] = self._tasks.supervise("health checks", watch, is_vital=False)
        self._report_if_changed(key, before)

    def unwatch(self, key: str, *, reachable: bool = False, refused: bool = False) -> None:
        """Stop probing a server without a link; ``refused``: it did not accept our credentials."""
        self._cancel(key)
        self.record(key).note_disconnected(
            reachable=reachable or refused, authenticated=False if refused else None
        )

    def forget(self, key: str) -> None:
        """Drop what is known of a server that was removed."""
        self._cancel(key)
        self.records.pop(key, None)

    def enable(self, key: str, enabled: bool) -> None:
        """Note that the operator has switched a server on or off."""
        self.record(key).enabled = enabled

    def observe_call(self, key: str, kind: CallKind) -> None:
        """Count a call that has ended."""
        record = self.records.get(key)
        if record is None:
            record = self.record(key)
        before = record.verdict
        if record.add_call(kind) is not before:
            self._report_if_changed(key, before)

    def observe_probe(self, key: str, result: ProbeResult) -> None:
        """Count a probe that has ended."""
        record = self.record(key)
        before = record.verdict
        record.add_probe(self._clock.now(), result)
        if result.kind is not ProbeKind.GOOD:
            words = "server %r: a health check went wrong (%s, %d in a row): %s"
            log.warning(words, key, result.kind, record.failed_checks, result.detail)
        self._report_if_changed(key, before)

    # -- output

    def record(self, key: str) -> HealthRecord:
        """Return the health record of a server; a new one for one not seen before."""
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = HealthRecord()
        return record

    def facts(self, key: str) -> HealthFacts:
        return self.record(key).facts()

    @property
    def watched(self) -> frozenset[str]:
        return frozenset(self._watches)

    # -- the schedule

    async def _watch(self, key: str, probe: Probe) -> None:
        await self._clock.sleep(self._chance() * self._schedule.interval)
        while True:
            self.observe_probe(key, await self._run_probe(probe))
            if self._watches.get(key) is not asyncio.current_task():
                return  # on_verdict has ended or replaced this watch
            if self.record(key).verdict is HealthVerdict.FAILED:
                del self._watches[key]
                return
            swing = 1 + JITTER * (2 * self._chance() - 1)
            await self._clock.sleep(self._schedule.interval * swing)

    async def _run_probe(self, probe: Probe) -> ProbeResult:
        """Run one probe, and give up when it takes too long by our clock."""
        began = self._clock.now()
        attempt = self._tasks.spawn(_catch_faults(probe))
        limit = self._tasks.spawn(self._clock.sleep(self._schedule.timeout))
        try:
            await wait_for_any(attempt, limit)
            if attempt.done():
                result: ProbeResult = attempt.result()
                return msgspec.structs.replace(result, seconds=self._clock.now() - began)
        finally:
            attempt.cancel()
            limit.cancel()
        words = f"no answer to a health check within {self._schedule.timeout:g} s"
        return ProbeResult(ProbeKind.TIMEOUT, self._schedule.timeout, words)

    def _cancel(self, key: str) -> None:
        task = self._watches.pop(key, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _report_if_changed(self, key: str, before: HealthVerdict) -> None:
        record = self.record(key)
        if record.verdict is not before:
            self._on_verdict(key, record.verdict, record.facts())


async def _catch_faults(probe: Probe) -> ProbeResult:
    try:
        return await probe()
    except Exception as error:  # whatever it is, the schedule goes on
        log.exception("a health check failed by a fault of Junction's own", exc_info=error)
        return ProbeResult(ProbeKind.CLIENT_ERROR, detail="an internal error of Junction")
