"""HealthWatch: probes servers, counts their calls, and acts on the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mcp_junction.calls.events import CallEnded
from mcp_junction.health.probes import (
    PING_TIMEOUT,
    Probe,
    Probes,
    ProbeSchedule,
    classify_call,
    make_ping_probe,
    make_url_probe,
)
from mcp_junction.health.verdict import GOOD, HealthFacts, HealthVerdict, ProbeKind, ProbeResult
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.registry.member import Member
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import Supervision
from mcp_junction.upstream.outcome import RESULT

BUSY: Final = 300.0
"""Seconds that a server with calls under way may leave pings unanswered: many do one thing at a
time, and a new connection would end the call."""


class HealthWatch:
    """Watches the health of every member."""

    def __init__(
        self,
        clock: Clock,
        schedule: ProbeSchedule,
        member_of: Callable[[str], Member | None],
        supervision: Supervision,
    ) -> None:
        self._clock = clock
        self._member_of = member_of
        self._probes = Probes(clock, self._apply_verdict, schedule, supervision=supervision)
        self._records, self._now = self._probes.records, clock.now
        self._silent_since: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        """When each server answered a call last."""
        self._patience = min(PING_TIMEOUT, 0.9 * schedule.timeout)

    async def close(self) -> None:
        await self._probes.close()

    def facts(self, member: Member) -> HealthFacts:
        record = self._records[member.id]
        record.enabled = member.record.enabled
        return record.facts()

    def watch(self, member: Member) -> None:
        """Probe a member that has a link, from now on."""
        self._silent_since.pop(member.id, None)
        self._probes.watch(member.id, self._make_probe(member))

    def unwatch(self, member: Member, *, reachable: bool = False, refused: bool = False) -> None:
        """Stop probing a member without a link."""
        self._probes.unwatch(member.id, reachable=reachable, refused=refused)

    def forget(self, member: Member) -> None:
        """Drop what is known of a member that was removed."""
        self._probes.forget(member.id)
        self._silent_since.pop(member.id, None)
        self._answered.pop(member.id, None)

    def observe_call(self, ended: CallEnded) -> None:
        """Count how a call of a server ended."""
        route = ended.route
        if route is None or not (server := route.upstream.definition.id):
            return
        record = self._records.get(server)
        if record is None and self._member_of(server) is None:
            return  # it was removed while the call ran
        if ended.outcome.kind is RESULT and route.upstream.link is not None:  # as nearly always
            self._answered[server] = self._now()
            if record is None or not (record.is_steady or record.count_good()):
                self._probes.observe_call(server, GOOD)
        elif not route.upstream.is_shut:  # what is being disconnected is refused by us
            kind = classify_call(ended.outcome)
            if kind is GOOD:
                self._answered[server] = self._now()
            self._probes.observe_call(server, kind)

    def last_answer(self, member: Member) -> float | None:
        """Return when a server answered a call or a probe last, by our clock."""
        facts = self._probes.facts(member.id)
        times = [self._answered.get(member.id), facts.last_check if facts.reachable else None]
        return max((at for at in times if at is not None), default=None)

    def _make_probe(self, member: Member) -> Probe:
        record = member.record
        if record.health_check_url is not None:
            # Imported where it is used: most servers have no health URL.
            from mcp_junction.upstream.http.dialer import dialer_for

            KNOWN.learn_url(record.health_check_url)
            dialer = dialer_for(member.upstream.definition)
            return make_url_probe(record.health_check_url, dialer)
        ping = make_ping_probe(member.upstream, self._patience)

        async def probe() -> ProbeResult:
            return self._excuse_silence(member, await ping())

        return probe

    def _excuse_silence(self, member: Member, result: ProbeResult) -> ProbeResult:
        """Turn a timeout into a warning while the server has calls to answer."""
        now = self._clock.now()
        if result.kind is not ProbeKind.TIMEOUT or not member.upstream.calls:
            self._silent_since.pop(member.id, None)
            return result
        if now - self._silent_since.setdefault(member.id, now) > BUSY:
            return result
        words = "it did not answer ping in time; it has calls to answer"
        return msgspec.structs.replace(result, kind=ProbeKind.CLIENT_ERROR, detail=words)

    def _apply_verdict(self, key: str, verdict: HealthVerdict, facts: HealthFacts) -> None:
        member = self._member_of(key)
        if member is None:
            return
        if verdict is HealthVerdict.FAILED:
            member.upstream.give_up(facts.detail)
        else:
            member.upstream.set_health(is_well=verdict is HealthVerdict.HEALTHY)
