"""Denials: records refused calls and requests in the audit, in a bounded number of rows.

The first refusal of a (principal, action, target) is recorded at once; repetitions are counted, and
recorded a minute later in one row. At most a thousand such triples are counted at a time: further
refusals are counted by principal, or by network where there is no principal, with some samples. The
counts of all rows add up to the refusals. It decides nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mcp_junction.audit.entries import Entry
from mcp_junction.policy.decision import DENY, NO_GRANT
from mcp_junction.redaction.payloads import redact_value
from mcp_junction.telemetry.events import OutcomeName

WINDOW: Final = 60.0
"""Seconds for which repeated refusals are counted before they are recorded."""
MOST: Final = 1_000
"""Triples that are counted at a time, and principals or networks beyond them."""
SAMPLES: Final = 20
NOT_SENT: Final = "not_sent"
"""The delivery of a refused call."""
ANONYMOUS: Final = "anonymous"
"""The actor of a request without a key."""
OTHERS: Final = "others"
"""The actor and network of refusals beyond all that is counted one by one."""
_LONGEST: Final = 200
_SAMPLE: Final = 100
"""Characters of a target among samples: all of them must fit into one row."""


class Denial(msgspec.Struct, frozen=True, gc=False):
    """One refusal."""

    kind: str
    """The kind of its row: ``call`` or ``request``."""
    actor: str
    action: str
    target: str
    reason: str
    role: str = ""
    server_id: str | None = None
    address: str | None = None
    """The address of a client without a key; None where the actor is known."""
    agent_id: str | None = None
    """The agent in whose name it was tried, where that is not the actor."""
    tool_name: str | None = None
    rule: str | None = None
    correlation_id: str | None = None
    ticket_id: str | None = None
    task_id: str | None = None
    decision: str = DENY
    """``DENY``, or ``unknown`` for something that does not exist: to an agent both look alike, so
    they are counted together, or the number of its rows would tell them apart."""


class _Repeated(msgspec.Struct):
    """Counts equal refusals since their last row."""

    since: float
    count: int = 0
    denied: int = 0
    """How many of them were not for something that does not exist."""
    told: Denial | None = None
    """What their next row tells: the first of them, or the first that was not ``unknown``."""

    def add(self, denial: Denial) -> None:
        """Count one more."""
        self.count += 1
        is_first_denied = denial.decision == DENY and not self.denied
        self.denied += denial.decision == DENY
        if self.told is None or is_first_denied:
            self.told = denial

    def take(self, now: float) -> tuple[Denial, int, dict[str, Any]]:
        """Return what the next row tells, and begin to count anew."""
        assert self.told is not None
        told = msgspec.structs.replace(self.told, correlation_id=None, ticket_id=None, task_id=None)
        more: dict[str, Any] = {"since": self.since}
        if 0 < self.denied < self.count:
            more["unknown"] = self.count - self.denied
        count, self.count, self.denied, self.told, self.since = self.count, 0, 0, None, now
        return told, count, more


class _Overflow(msgspec.Struct):
    """Counts refusals beyond MOST triples, of one principal or network."""

    first: Denial
    network: str | None
    since: float
    count: int = 0
    samples: list[tuple[str, str]] = msgspec.field(default_factory=list)


class Denials:
    """Counts refusals and passes rows to ``record``. A repeated refusal costs one look-up."""

    def __init__(
        self, record: Callable[[Entry], None], now: Callable[[], float] = time.time
    ) -> None:
        self._record = record
        self._now = now
        self._repeated: dict[tuple[str | bool, ...], _Repeated] = {}
        self._overflow: dict[str, _Overflow] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, denial: Denial) -> None:
        """Count one refusal; the first of its kind is recorded at once."""
        target = denial.target[:_LONGEST]
        who = denial.address or denial.actor, denial.role, denial.agent_id or ""
        looks_unknown = denial.rule in (None, NO_GRANT)
        key = (*who, denial.action, target, looks_unknown)
        known = self._repeated.get(key)
        if known is not None:
            known.add(denial)
        elif len(self._repeated) < MOST:
            self._repeated[key] = _Repeated(self._now())
            self._record(self._entry(denial, 1, {}))
        else:
            self._count_overflow(denial, target)
        if self._timer is None:
            self._arm()

    def flush(self) -> None:
        """Record what was counted; forget what was not refused again."""
        for key, known in list(self._repeated.items()):
            if known.told is not None:
                self._record(self._entry(*known.take(self._now())))
            else:
                del self._repeated[key]
        overflow, self._overflow = self._overflow, {}
        for one in overflow.values():
            self._record(self._summary(one))

    def close(self) -> None:
        """Record what is left; from now on each refusal is recorded at once."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()

    def _arm(self) -> None:
        """Start the timer after which counted refusals are recorded."""
        if self._closed:
            self.flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(WINDOW, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.flush()
        if self._repeated:
            self._arm()

    def _count_overflow(self, denial: Denial, target: str) -> None:
        network = None if denial.address is None else _network(denial.address)
        group = f"{denial.role} {denial.actor}" if network is None else network
        group = f"{denial.decision} {group}"
        overflow = self._overflow.get(group)
        if overflow is None:
            if len(self._overflow) >= MOST:
                group, network = denial.decision, OTHERS
                denial = msgspec.structs.replace(denial, actor=OTHERS, role="", address=OTHERS)
            overflow = self._overflow.get(group) or _Overflow(denial, network, self._now())
            self._overflow[group] = overflow
        overflow.count += 1
        if len(overflow.samples) < SAMPLES:
            overflow.samples.append((denial.action, target[:_SAMPLE]))

    # -- rows

    def _entry(self, denial: Denial, count: int, more: dict[str, Any]) -> Entry:
        origin = {} if denial.address is None else {"address": denial.address}
        detail = {"reason": denial.reason, "count": count, **origin, **more}
        target = redact_value(denial.target[:_LONGEST])
        return self._make_entry(
            denial,
            denial.kind,
            denial.action,
            detail,
            server_id=denial.server_id,
            target=target,
            tool_name=denial.tool_name,
            correlation_id=denial.correlation_id,
            ticket_id=denial.ticket_id,
            task_id=denial.task_id,
            agent_id=denial.agent_id,
            rule=denial.rule,
        )

    def _summary(self, overflow: _Overflow) -> Entry:
        network = {} if overflow.network is None else {"network": overflow.network}
        samples = [{"action": action, "target": target} for action, target in overflow.samples]
        detail = {"count": overflow.count, "since": overflow.since, **network, "samples": samples}
        return self._make_entry(overflow.first, "denials", "denials", detail)

    def _make_entry(
        self, first: Denial, kind: str, action: str, detail: dict[str, Any], **more: Any
    ) -> Entry:
        return Entry(
            kind=kind,
            actor=first.actor,
            action=action,
            at=self._now(),
            role=first.role,
            decision=first.decision,
            outcome=OutcomeName.DENIED if first.decision == DENY else OutcomeName.ERROR,
            delivery=NOT_SENT if first.kind == "call" else None,
            detail=detail,
            **more,
        )


def _network(address: str) -> str:
    """Return the /24 or, for IPv6, the /64 of an address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return OTHERS
    mapped = found.ipv4_mapped if found.version == 6 else None
    found = mapped or found
    prefix = 24 if found.version == 4 else 64
    return str(ipaddress.ip_network(f"{found}/{prefix}", strict=False))
