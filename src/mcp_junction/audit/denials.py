"""Denials: what was refused, as rows of the audit that no flood of refusals can drown.

The first refusal of a principal, an action and a target is a row at once; what is refused again is
counted, and a minute later is one row with the count. There are at most a thousand such triples at
a time: what exceeds them is counted by principal, or by the network of an address where there is no
principal, with some samples. The counts of all rows add up to the refusals. It decides nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mcp_junction.audit.chain import Entry
from mcp_junction.redaction.payloads import redact_value
from mcp_junction.telemetry.outcomes import OutcomeName

WINDOW: Final = 60.0
"""Seconds for which refusals that repeat are counted before there is a row of them."""
MOST: Final = 1_000
"""Triples that are known at a time, and principals or networks beyond them."""
SAMPLES: Final = 20
ANONYMOUS: Final = "anonymous"
"""Who is refused for want of a key."""
OTHERS: Final = "others"
"""Who is beyond the principals and networks that are counted one by one."""
_LONGEST: Final = 200
_SAMPLE: Final = 100
"""Characters of a target among samples: all of them must fit into one row."""


class Denied(msgspec.Struct, frozen=True, gc=False):
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
    """Where somebody without a key asks from; None where the actor is known."""


class _Repeated(msgspec.Struct):
    """Refusals since their last row."""

    first: Denied
    since: float
    count: int = 0


class _Rest(msgspec.Struct):
    """What has no row of its own, of one principal or network."""

    first: Denied
    network: str | None
    since: float
    count: int = 0
    samples: list[tuple[str, str]] = msgspec.field(default_factory=list)


class Denials:
    """Takes refusals and gives rows to ``record``. A refusal costs little more than a look-up."""

    def __init__(
        self, record: Callable[[Entry], None], now: Callable[[], float] = time.time
    ) -> None:
        self._record = record
        self._now = now
        self._repeated: dict[tuple[str, str, str, str], _Repeated] = {}
        self._rest: dict[str, _Rest] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, denied: Denied) -> None:
        """Take one refusal."""
        target = denied.target[:_LONGEST]
        key = denied.address or denied.actor, denied.role, denied.action, target
        known = self._repeated.get(key)
        if known is not None:
            known.count += 1
        elif len(self._repeated) < MOST:
            denied = msgspec.structs.replace(denied, target=target)
            self._repeated[key] = _Repeated(denied, self._now())
            self._record(self._entry(denied, 1, {}))
        else:
            self._add_rest(denied, target)
        if self._timer is None:
            self._arm()

    def flush(self) -> None:
        """Make rows of what was counted; what was not refused again is forgotten."""
        for key, known in list(self._repeated.items()):
            if known.count:
                self._record(self._entry(known.first, known.count, {"since": known.since}))
                known.count, known.since = 0, self._now()
            else:
                del self._repeated[key]
        rest, self._rest = self._rest, {}
        for one in rest.values():
            self._record(self._summary(one))

    def close(self) -> None:
        """Make the last rows; from now on none waits."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()

    def _arm(self) -> None:
        """Have what is counted become rows in time; without any there is no timer."""
        if self._closed:
            self.flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(WINDOW, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.flush()
        if self._repeated:
            self._arm()

    def _add_rest(self, denied: Denied, target: str) -> None:
        network = None if denied.address is None else _network(denied.address)
        group = f"{denied.role} {denied.actor}" if network is None else network
        rest = self._rest.get(group)
        if rest is None:
            if len(self._rest) >= MOST:
                group, network = "", OTHERS
                denied = msgspec.structs.replace(denied, actor=OTHERS, role="", address=OTHERS)
            rest = self._rest.get(group) or _Rest(denied, network, self._now())
            self._rest[group] = rest
        rest.count += 1
        if len(rest.samples) < SAMPLES:
            rest.samples.append((denied.action, target[:_SAMPLE]))

    # -- rows

    def _entry(self, denied: Denied, count: int, more: dict[str, Any]) -> Entry:
        whence = {} if denied.address is None else {"address": denied.address}
        return Entry(
            kind=denied.kind,
            actor=denied.actor,
            action=denied.action,
            at=self._now(),
            role=denied.role,
            server_id=denied.server_id,
            target=redact_value(denied.target),
            decision="denied",
            outcome=OutcomeName.DENIED,
            detail={"reason": denied.reason, "count": count, **whence, **more},
        )

    def _summary(self, rest: _Rest) -> Entry:
        detail: dict[str, Any] = {"count": rest.count, "since": rest.since}
        if rest.network is not None:
            detail["network"] = rest.network
        detail["samples"] = [{"action": action, "target": t} for action, t in rest.samples]
        return Entry(
            kind="denials",
            actor=rest.first.actor,
            action="denials",
            at=self._now(),
            role=rest.first.role,
            decision="denied",
            outcome=OutcomeName.DENIED,
            detail=detail,
        )


def _network(address: str) -> str:
    """The network of an address: what one party can have many addresses in."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return OTHERS
    mapped = found.ipv4_mapped if found.version == 6 else None
    found = mapped or found
    prefix = 24 if found.version == 4 else 64
    return str(ipaddress.ip_network(f"{found}/{prefix}", strict=False))
