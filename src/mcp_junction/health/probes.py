"""Probes: probes servers on a schedule, counts their calls, and reports changed verdicts.

Each watched server has its own task, which sleeps, probes, and sleeps again, so that a slow probe
delays no other. The first probe comes after a random part of the interval, the rest with a little
jitter: a thousand servers are not probed at one moment.

``on_verdict(key, verdict, facts)`` is called on every change. After FAILED a server is not probed
until ``watch`` is called for a new connection, which is its owner's to make.

A probe goes by a server's health URL, or by MCP ``ping``. It does not raise for what a server does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from mcp_junction.errors import AddressRefused
from mcp_junction.health.verdict import (
    FAILED,
    GOOD,
    NEUTRAL,
    CallKind,
    HealthFacts,
    HealthRecord,
    HealthVerdict,
    ProbeKind,
    ProbeResult,
)
from mcp_junction.protocol.versions import CALL_TIMEOUT, LINK_LOST, SERVER_UNAVAILABLE
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import Supervision, TaskScope, wait_for_any
from mcp_junction.upstream.outcome import CANCELLED, ERROR, RESULT, Outcome

if TYPE_CHECKING:
    from mcp_junction.upstream.http.dialer import Dialer
    from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.health")

JITTER: Final = 0.1
PING_TIMEOUT: Final = 4.9
"""Less than a probe may take, so that there is time to send the server a cancellation."""

Probe = Callable[[], Awaitable[ProbeResult]]
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
        self.records: defaultdict[str, HealthRecord] = defaultdict(HealthRecord)
        """What is known of each server, by its key; a new record for one not seen before."""
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._tasks = TaskScope("health", supervision)

    async def close(self) -> None:
        self._watches.clear()
        await self._tasks.close()

    # -- input

    def watch(self, key: str, probe: Probe) -> None:
        """Reset a server that has connected, and probe it from now on."""
        self._cancel(key)
        record = self.records[key]
        before = record.verdict
        record.note_connected()
        watch = partial(self._watch, key, probe)
        self._watches[key] = self._tasks.supervise("health checks", watch, is_vital=False)
        self._report_if_changed(key, before)

    def unwatch(self, key: str, *, reachable: bool = False, refused: bool = False) -> None:
        """Stop probing a server without a link; ``refused``: it did not accept our credentials."""
        self._cancel(key)
        self.records[key].note_disconnected(
            reachable=reachable or refused, authenticated=False if refused else None
        )

    def forget(self, key: str) -> None:
        """Drop what is known of a server that was removed."""
        self._cancel(key)
        self.records.pop(key, None)

    def observe_call(self, key: str, kind: CallKind) -> None:
        """Count a call that has ended."""
        record = self.records[key]
        before = record.verdict
        if record.add_call(kind) is not before:
            self._report_if_changed(key, before)

    def observe_probe(self, key: str, result: ProbeResult) -> None:
        """Count a probe that has ended."""
        record = self.records[key]
        before = record.verdict
        record.add_probe(self._clock.now(), result)
        if result.kind is not ProbeKind.GOOD:
            words = "server %r: a health check went wrong (%s, %d in a row): %s"
            log.warning(words, key, result.kind, record.failed_checks, result.detail)
        self._report_if_changed(key, before)

    # -- output

    def facts(self, key: str) -> HealthFacts:
        return self.records[key].facts()

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
            if self.records[key].verdict is HealthVerdict.FAILED:
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
        record = self.records[key]
        if record.verdict is not before:
            self._on_verdict(key, record.verdict, record.facts())


async def _catch_faults(probe: Probe) -> ProbeResult:
    try:
        return await probe()
    except Exception as error:  # whatever it is, the schedule goes on
        log.exception("a health check failed by a fault of Junction's own", exc_info=error)
        return ProbeResult(ProbeKind.CLIENT_ERROR, detail="an internal error of Junction")


# -- probes


class _StatusData(msgspec.Struct, frozen=True):
    http_status: int = 0


class _StatusError(msgspec.Struct, frozen=True):
    code: int = 0
    data: _StatusData = _StatusData()


def make_url_probe(url: str, dialer: Dialer) -> Probe:
    """Make a probe that sends GET to a URL, under the rules for outgoing connections."""

    async def check() -> ProbeResult:
        # Imported where it is used: most servers have no health URL.
        from mcp_junction.upstream.http.fetch import fetch_status

        try:
            return classify_status(await fetch_status(url, dialer))
        except (OSError, AddressRefused) as error:
            words = getattr(error, "strerror", None) or str(error)
            return ProbeResult(ProbeKind.UNREACHABLE, detail=f"its health check: {words}")
        except ValueError as error:
            return ProbeResult(ProbeKind.UNREACHABLE, detail=f"its health_check_url: {error}")

    return check


def make_ping_probe(server: Upstream, timeout: float = PING_TIMEOUT) -> Probe:
    """Make a probe that sends MCP ``ping`` on a server's link; a stateless server has no ping, and
    gets ``server/discover``."""

    async def check() -> ProbeResult:
        method = "server/discover" if server.is_stateless else "ping"
        return classify_ping(await server.request(method, b"{}", timeout))

    return check


def classify_status(status: int) -> ProbeResult:
    """Turn the status that a health URL answered into a result."""
    detail = f"its health check answered HTTP {status}"
    if 200 <= status < 300:
        return ProbeResult(ProbeKind.GOOD)
    if status in (401, 403):
        return ProbeResult(ProbeKind.UNAUTHENTICATED, detail=detail)
    if status < 500:  # redirects are not followed
        return ProbeResult(ProbeKind.CLIENT_ERROR, detail=detail)
    return ProbeResult(ProbeKind.SERVER_ERROR, detail=detail)


def classify_ping(outcome: Outcome) -> ProbeResult:
    """Turn the outcome of a ping into a result. Any answer, even an error, shows a live server."""
    if outcome.kind is RESULT:
        return ProbeResult(ProbeKind.GOOD)
    if outcome.delivery is None:
        return ProbeResult(ProbeKind.GOOD)  # it answered that it does not know ping
    code = _error(outcome).code
    if code == CALL_TIMEOUT:
        return ProbeResult(ProbeKind.TIMEOUT, detail="it did not answer ping in time")
    if code in (SERVER_UNAVAILABLE, LINK_LOST):
        return ProbeResult(ProbeKind.UNREACHABLE, detail="it could not be pinged: its link is lost")
    return ProbeResult(ProbeKind.SERVER_ERROR, detail="its answer to ping makes no sense")


def classify_call(outcome: Outcome) -> CallKind:
    """Decide whether a call counts for or against its server's health, as R-BREAKER says.

    The caller leaves out calls that ended by a short deadline of the client's own.
    """
    if outcome.kind is RESULT or (outcome.kind is ERROR and outcome.delivery is None):
        return GOOD  # the server answered, if only with an error of the tool
    if outcome.kind is CANCELLED:
        return NEUTRAL
    error = _error(outcome)
    if error.code in (SERVER_UNAVAILABLE, LINK_LOST, CALL_TIMEOUT) or error.data.http_status >= 500:
        return FAILED
    return NEUTRAL


def _error(outcome: Outcome) -> _StatusError:
    try:
        return msgspec.json.decode(outcome.payload, type=_StatusError)
    except msgspec.MsgspecError:
        return _StatusError()
