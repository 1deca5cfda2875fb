"""Probes: probes servers on a schedule, hears of their calls, and says when a verdict changes.

One task a watched server, all owned here: each sleeps, checks, and sleeps again, so that checks run
side by side and a slow one holds up none. The first comes after a random part of the interval, the
rest with a little jitter: a thousand servers are not checked at one moment.

Its user, the lifecycle of servers, calls:

    watch(key, probe)             the server is connected: check it from now on
    unwatch(key, …)               its link is gone
    forget(key)                   it was removed
    observe_call(key, kind)       a call to it has ended
    observe_probe(key, found)     something else has checked it

and is told ``on_verdict(key, verdict, facts)`` on every change. After FAILED the server is not
watched any more until it is connected again: reconnecting it is its owner's work.
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
    Facts,
    HealthRecord,
    HealthVerdict,
    Probed,
    ProbeKind,
)
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import Supervision, TaskScope

log = logging.getLogger("mcp_junction.health")

JITTER: Final = 0.1
OnVerdict = Callable[[str, HealthVerdict, Facts], None]


class Pace(msgspec.Struct, frozen=True):
    """How often servers are checked, and how long a check may take; in seconds."""

    interval: float = 30.0
    timeout: float = 5.0


class Probes:
    """The health of every server."""

    def __init__(
        self,
        clock: Clock,
        on_verdict: OnVerdict,
        pace: Pace | None = None,
        chance: Callable[[], float] = random.random,
        supervision: Supervision | None = None,
    ) -> None:
        self._clock = clock
        self._on_verdict = on_verdict
        self._pace = pace or Pace()
        self._chance = chance
        self._records: dict[str, HealthRecord] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._tasks = TaskScope("health", supervision)

    async def close(self) -> None:
        self._watches.clear()
        await self._tasks.close()

    # -- what it is told

    def watch(self, key: str, probe: Probe) -> None:
        """The server is connected: begin anew with it."""
        self._stop(key)
        record = self.record(key)
        before = record.verdict
        record.connected()
        watch = partial(self._watch, key, probe)
        self._watches[key] = self._tasks.supervise("health checks", watch, is_vital=False)
        self._tell(key, before)

    def unwatch(self, key: str, *, reachable: bool = False, refused: bool = False) -> None:
        """Its link is gone; ``refused`` when it did not accept our credentials."""
        self._stop(key)
        self.record(key).disconnected(
            reachable=reachable or refused, authenticated=False if refused else None
        )

    def forget(self, key: str) -> None:
        """There is no such server any more."""
        self._stop(key)
        self._records.pop(key, None)

    def enable(self, key: str, enabled: bool) -> None:
        """The operator has switched it on or off."""
        self.record(key).enabled = enabled

    def observe_call(self, key: str, kind: CallKind) -> None:
        """A call has ended."""
        record = self.record(key)
        before = record.verdict
        if record.call(kind) is not before:
            self._tell(key, before)

    def observe_probe(self, key: str, found: Probed) -> None:
        """A check has ended."""
        record = self.record(key)
        before = record.verdict
        record.probe(self._clock.now(), found)
        if found.kind is not ProbeKind.GOOD:
            words = "server %r: a health check went wrong (%s, %d in a row): %s"
            log.warning(words, key, found.kind, record.failed_checks, found.detail)
        self._tell(key, before)

    # -- what it knows

    def record(self, key: str) -> HealthRecord:
        """What was seen of a server. Keep it where ``observe_call`` is called often."""
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = HealthRecord()
        return record

    def facts(self, key: str) -> Facts:
        return self.record(key).facts()

    @property
    def watched(self) -> frozenset[str]:
        return frozenset(self._watches)

    # -- the schedule

    async def _watch(self, key: str, probe: Probe) -> None:
        pace = self._pace
        await self._clock.sleep(self._chance() * pace.interval)
        while True:
            found = await self._try(probe)
            self.observe_probe(key, found)
            if self._watches.get(key) is not asyncio.current_task():
                return  # who was told has ended this watch
            if self.record(key).verdict is HealthVerdict.FAILED:
                del self._watches[key]
                return
            swing = 1 + JITTER * (2 * self._chance() - 1)
            await self._clock.sleep(pace.interval * swing)

    async def _try(self, probe: Probe) -> Probed:
        """One check, given up in time by our own clock."""
        began = self._clock.now()
        attempt = self._tasks.spawn(_safely(probe))
        limit = self._tasks.spawn(self._clock.sleep(self._pace.timeout))
        try:
            await asyncio.wait({attempt, limit}, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                found: Probed = attempt.result()
                return msgspec.structs.replace(found, seconds=self._clock.now() - began)
        finally:
            attempt.cancel()
            limit.cancel()
        words = f"no answer to a health check within {self._pace.timeout:g} s"
        return Probed(ProbeKind.TIMEOUT, self._pace.timeout, words)

    def _stop(self, key: str) -> None:
        task = self._watches.pop(key, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _tell(self, key: str, before: HealthVerdict) -> None:
        record = self.record(key)
        if record.verdict is not before:
            self._on_verdict(key, record.verdict, record.facts())


async def _safely(probe: Probe) -> Probed:
    try:
        return await probe()
    except Exception as error:
        log.exception("a health check failed by a fault of Junction's own", exc_info=error)
        return Probed(ProbeKind.CLIENT_ERROR, detail="an internal error of Junction")
