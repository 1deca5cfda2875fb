"""Member: one server at run time: its record, its link, and what is known of it now.

What outsiders are told of its state is a little calmer than the link's own: while it is down and
tried again and again it is in ERROR, not in ERROR and CONNECTING by turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec

from mcp_junction.catalog.items import ServerLists
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import NotFound
from mcp_junction.health.verdict import HealthFacts
from mcp_junction.policy.pinning import PinnedState
from mcp_junction.store.records import ServerRecord, ToolRecord
from mcp_junction.upstream.server import Upstream
from mcp_junction.upstream.state import ServerState


class Decision(msgspec.Struct):
    """What holds for one tool: its pin, and what was decided about it."""

    pinned: str
    hash: str
    quarantined: bool = False
    enabled: bool = True
    flags: tuple[str, ...] = ()
    approved: tuple[str, ...] | None = None
    """The flags with which a person approved what is pinned; None if nobody did."""
    blocked: bool = False

    @property
    def state(self) -> PinnedState:
        """What the rule of quarantine needs to know."""
        is_approved = self.approved is not None
        return PinnedState(self.pinned, self.hash, self.quarantined, is_approved, self.blocked)

    @property
    def known_flags(self) -> tuple[str, ...]:
        """The flags that were seen or approved before."""
        if self.approved is None or self.hash != self.pinned:
            return self.flags
        return (*self.flags, *self.approved)

    @property
    def is_open(self) -> bool:
        """Whether it may be seen and called."""
        return self.enabled and not self.quarantined

    @property
    def needs_approval(self) -> bool:
        """Whether it is open, and a strict pin would quarantine it."""
        is_changed = self.hash != self.pinned
        return self.is_open and (is_changed or not set(self.flags) <= set(self.approved or ()))


def decision_of(record: ToolRecord) -> Decision:
    """What holds for a tool, from its record."""
    return Decision(
        record.pinned_hash,
        record.hash,
        record.quarantined,
        record.enabled,
        tuple(record.flags),
        None if record.approved_flags is None else tuple(record.approved_flags),
        record.blocked,
    )


class Member:
    """One server. Changed only by the Registry and its parts."""

    def __init__(self, record: ServerRecord, upstream: Upstream) -> None:
        self.record = record
        self.upstream = upstream
        self.file_definition: ServerDefinition | None = None
        """What the config file says of it, if it is the file's."""
        self.lock = asyncio.Lock()
        """Held while it is changed."""
        self.deciding = asyncio.Lock()
        """Held while what was decided or noticed about its tools is written."""
        self.refreshing = asyncio.Lock()
        """Held while somebody has its lists read again."""
        self.status = ServerState.DISCONNECTED
        self.connected_at: float | None = None
        self.down_since: float | None = None
        self.tool_count = record.tool_count
        self._checked: tuple[float | None, float | None] = (None, record.last_health_check)
        self.decisions: dict[str, Decision] = {}
        self.offering: ServerLists | None = None
        """All it offers, also what nobody is shown."""

    def use(self, upstream: Upstream) -> None:
        """Take another Upstream for it: it is reached another way."""
        self.upstream = upstream
        if self.offering is not None:
            self.offering = msgspec.structs.replace(self.offering, upstream=upstream)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def is_serving(self) -> bool:
        return self.status in (ServerState.CONNECTED, ServerState.DEGRADED)

    def shown_state(self) -> ServerState:
        """Its state as outsiders are told it."""
        upstream = self.upstream
        if upstream.state is ServerState.CONNECTING and upstream.error is not None:
            return ServerState.ERROR
        return upstream.state

    async def settled(self) -> tuple[str, str]:
        """How an attempt to connect to it has ended: its status, and words."""
        upstream = self.upstream
        limit = upstream.policy.start_timeout * 2
        try:
            await asyncio.wait_for(upstream.settled.wait(), limit)
        except TimeoutError:
            return self.status.value, f"it is not connected after {limit:g} s"
        if self.status is ServerState.DISCONNECTED:
            return self.status.value, "it was disconnected meanwhile"
        error = upstream.error
        if error is not None:
            return self.status.value, error.message
        return self.status.value, upstream.condition.shortfall or "connected"

    def _remarks(self, facts: HealthFacts) -> str:
        """Return what is wrong with it while it is connected."""
        if not self.is_serving:
            return facts.detail
        return "; ".join(filter(None, (facts.detail, self.upstream.condition.shortfall)))

    def current_record(self, facts: HealthFacts, now: float) -> ServerRecord:
        """Its record, with how it stands now. ``now`` is by the clock the facts are by."""
        error = self.upstream.error
        words = error.message if error is not None else self._remarks(facts)
        if facts.last_check is not None and facts.last_check != self._checked[0]:
            self._checked = facts.last_check, time.time() - (now - facts.last_check)
        return msgspec.structs.replace(
            self.record,
            status=self.status.value,
            reachable=facts.reachable,
            authenticated=facts.authenticated,
            healthy=facts.healthy,
            last_health_check=self._checked[1],
            response_time_ms=facts.response_time_ms,
            error_rate=facts.error_rate,
            error_message=words or None,
            connected_at=self.connected_at,
            tool_count=self.tool_count,
        )


class Members:
    """Every member, by id and by name, in the order in which they came."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_name: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, server_id: str) -> bool:
        return server_id in self._by_id

    def find(self, ref: str) -> Member | None:
        """A member by id, or else by name."""
        return self._by_id.get(ref) or self._by_name.get(ref)

    def get(self, ref: str) -> Member:
        """Raises NotFound."""
        found = self.find(ref)
        if found is None:
            raise NotFound(f"there is no server {ref!r}")
        return found

    def named(self, name: str) -> Member | None:
        return self._by_name.get(name)

    def add(self, member: Member) -> None:
        self._by_id[member.id] = self._by_name[member.name] = member

    def remove(self, member: Member) -> None:
        del self._by_id[member.id], self._by_name[member.name]

    def replace(self, member: Member, record: ServerRecord) -> None:
        """A member has another record, and with it maybe another name."""
        del self._by_name[member.name]
        member.record = record
        self._by_name[record.name] = member
