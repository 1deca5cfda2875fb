"""Member: one server at run time: its record, its Upstream, its status and its tools' decisions.

The status that is shown is calmer than the Upstream's: while a server is down and tried again and
again it stays in ERROR, and does not alternate between ERROR and CONNECTING.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import NotFound
from mcp_junction.health.verdict import HealthFacts
from mcp_junction.policy.pinning import PinnedState
from mcp_junction.store.records import ServerRecord, ToolRecord
from mcp_junction.tasks import wait_until_set
from mcp_junction.upstream.state import ServerState
from mcp_junction.upstream.upstream import Upstream

INVALID_SCHEMA: Final = "invalid_schema"
INCOMPATIBLE: Final = "incompatible_version"
REMARKS: Final = (INVALID_SCHEMA, INCOMPATIBLE)
"""Flags that say something is wrong with a tool, but nothing suspicious about it."""


def is_remark(flag: str) -> bool:
    """Whether a flag is a remark, which quarantines nothing."""
    return flag.partition(":")[0] in REMARKS


class Decision(msgspec.Struct):
    """The pin of one tool, its flags, and what people decided about its definition."""

    pinned: str
    hash: str
    quarantined: bool = False
    flags: tuple[str, ...] = ()
    approved: tuple[str, ...] | None = None
    """The flags with which a person approved what is pinned; None if nobody did."""
    blocked: bool = False
    schema_fault: str = ""
    """What is wrong with its schema; empty when nothing is, or it was not checked yet."""

    @property
    def state(self) -> PinnedState:
        """What the rule of quarantine (``policy/pinning.py``) needs to know."""
        is_approved = self.approved is not None
        return PinnedState(self.pinned, self.hash, self.quarantined, is_approved, self.blocked)

    @property
    def known_flags(self) -> tuple[str, ...]:
        """The flags that were seen or approved before."""
        if self.approved is None or self.hash != self.pinned:
            return self.flags
        return (*self.flags, *self.approved)

    @property
    def needs_approval(self) -> bool:
        """Whether the tool is not quarantined, but would be under a strict pin."""
        if self.quarantined:
            return False
        suspicious = {flag for flag in self.flags if not is_remark(flag)}
        return self.hash != self.pinned or not suspicious <= set(self.approved or ())


def decision_of(record: ToolRecord) -> Decision:
    """Make the Decision that a tool's record stores."""
    return Decision(
        record.pinned_hash,
        record.hash,
        record.quarantined,
        tuple(record.flags),
        None if record.approved_flags is None else tuple(record.approved_flags),
        record.blocked,
        _find_schema_fault(record.flags),
    )


def _find_schema_fault(flags: list[str]) -> str:
    """Find the words of the flag that says what is wrong with the schema."""
    kinds = (flag.partition(": ") for flag in flags)
    return next((why for kind, _, why in kinds if kind == INVALID_SCHEMA), "")


class Member:
    """One server. Changed only by the Registry and its parts."""

    def __init__(self, record: ServerRecord, upstream: Upstream) -> None:
        self.record = record
        self.upstream = upstream
        self.file_definition: ServerDefinition | None = None
        """Its definition in the config file, if it is the file's."""
        self.lock = asyncio.Lock()
        """Held while it is changed."""
        self.decision_lock = asyncio.Lock()
        """Held while decisions about its tools, or their flags, are stored."""
        self.refresh_lock = asyncio.Lock()
        """Held while its lists are read again on request."""
        self.status = ServerState.DISCONNECTED
        self.connected_at: float | None = None
        self.down_since: float | None = None
        self.tool_count = record.tool_count
        self._last_check: tuple[float | None, float | None] = (None, record.last_health_check)
        self.decisions: dict[str, Decision] = {}
        self.offering: ServerLists | None = None
        """Its lists, with what is hidden from clients."""

    def replace_upstream(self, upstream: Upstream) -> None:
        """Use a new Upstream: the server is reached in another way."""
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
    def server_version(self) -> str | None:
        """The server's own version, as it said last or as it was registered."""
        greeting = self.upstream.greeting
        return (greeting.version if greeting is not None else "") or self.record.server_version

    @property
    def listed_tools(self) -> tuple[ListItem, ...]:
        """The tools that the server listed last, with those that are hidden."""
        return self.offering.tools if self.offering is not None else ()

    @property
    def is_serving(self) -> bool:
        return self.status in (ServerState.CONNECTED, ServerState.DEGRADED)

    def shown_state(self) -> ServerState:
        """Return the status to show."""
        upstream = self.upstream
        if upstream.state is ServerState.CONNECTING and upstream.error is not None:
            return ServerState.ERROR
        return upstream.state

    async def wait_until_settled(self) -> tuple[str, str]:
        """Wait for the end of an attempt to connect; return the status, and a message."""
        upstream = self.upstream
        limit = upstream.policy.start_timeout * 2
        if not await wait_until_set(upstream.settled, limit):
            return self.status.value, f"it is not connected after {limit:g} s"
        if self.status is ServerState.DISCONNECTED:
            return self.status.value, "it was disconnected meanwhile"
        error = upstream.error
        if error is not None:
            return self.status.value, error.message
        return self.status.value, upstream.condition.lacking or "connected"

    def _remarks(self, facts: HealthFacts) -> str:
        """Return what is wrong with it while it is connected."""
        if not self.is_serving:
            return facts.detail
        return "; ".join(filter(None, (facts.detail, self.upstream.condition.lacking)))

    def current_record(self, facts: HealthFacts, now: float) -> ServerRecord:
        """Return its record with its status now; ``now`` is by the clock of the facts."""
        error = self.upstream.error
        words = error.message if error is not None else self._remarks(facts)
        if facts.last_check is not None and facts.last_check != self._last_check[0]:
            self._last_check = facts.last_check, time.time() - (now - facts.last_check)
        tokens = self.upstream.tokens
        is_signed_in = tokens.is_authenticated if tokens is not None else None
        return msgspec.structs.replace(
            self.record,
            status=self.status.value,
            server_version=self.server_version,
            reachable=facts.reachable,
            authenticated=facts.authenticated if is_signed_in is None else is_signed_in,
            healthy=facts.healthy,
            last_health_check=self._last_check[1],
            response_time_ms=facts.response_time_ms,
            error_rate=facts.error_rate,
            error_message=words or None,
            connected_at=self.connected_at,
            tool_count=self.tool_count,
        )


class Members:
    """All members, by id and by name, in the order in which they were added."""

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
        """Find a member by id, or else by name."""
        return self._by_id.get(ref) or self._by_name.get(ref)

    def get(self, ref: str) -> Member:
        """Return a member by id or name. Raises NotFound."""
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
        """Give a member a new record, and with it maybe a new name."""
        del self._by_name[member.name]
        member.record = record
        self._by_name[record.name] = member
