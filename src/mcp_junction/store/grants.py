"""The tables of what agents may do: agents, grants, the tokens of grants, and approvals of calls.

Agents, grants and tokens are changed by ``PolicyTables``. What a grant means is in
``policy/grants.py``; when a call needs a token, in ``policy/tokens.py``. The keys of agents are in
``keys.py``.

ApprovalTable stores requests for approval, and spends each approval once. What an approval is bound
to is in ``policy/approvals.py``. Of all calls that race for one, in any process, the database lets
a single one take it. The arguments are sealed; the preview is redacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_junction.policy.approvals import ApprovalState
from mcp_junction.policy.grants import ANY, Grant, GrantKey, GrantSource, regrant
from mcp_junction.policy.tokens import Token
from mcp_junction.store.database import Query, Script, bump, make_where, placeholders
from mcp_junction.store.protected import SignedRecord, SignedTable
from mcp_junction.store.table import Table, transaction

REPLAYED: Final = 24 * 3600.0
"""Seconds that a used token is known for: as long as the record of an idempotency key is kept."""
_SAME: Final = "agent_id = ? AND server_id = ? AND tool_name = ? AND kinds = ?"
_RELEVANT: Final = "revoked_at IS NULL AND (expires_at > ? OR used_at > ?)"


class AgentRecord(SignedRecord, frozen=True):
    """An agent."""

    agent_id: str
    agent_type: str = ""
    declared_tools: tuple[str, ...] = ()
    """What it was bound to when it was registered, each as ``server:tool``."""
    created_at: float = 0.0
    created_by: str = ""


class AgentTable(SignedTable[AgentRecord]):
    """All agents that were registered, or given a grant."""

    _table = Table("agents", AgentRecord, json={"declared_tools"})
    noun = "agent"

    async def all(self) -> list[AgentRecord]:
        """Read all agents, by id."""
        return sorted(await self.read_all(), key=lambda agent: agent.agent_id)

    async def find(self, agent_id: str) -> AgentRecord | None:
        """Read one agent, if there is one."""
        return await self.read_first("WHERE agent_id = ?", agent_id)

    async def find_time_made(self, agent_id: str) -> float:
        """Return since when an agent is the one that it is: before, another may have had its id.

        An agent from before there were records of agents has all that its id has done.
        """
        agent = await self.find(agent_id)
        is_older = agent is None or agent.created_by == GrantSource.MIGRATED.value
        return 0.0 if agent is None or is_older else agent.created_at

    # -- parts of a transaction

    def add_missing(self, agent: AgentRecord) -> Script[AgentRecord]:
        """Store an agent unless there is one of that id; return the one that there is."""
        existing = yield from self.read_one("WHERE agent_id = ?", agent.agent_id)
        if existing is not None:
            return existing
        yield self.put(agent)
        return agent

    def replace(self, agent: AgentRecord) -> Script[AgentRecord]:
        """Store what an agent is now; when it came about, and by whom, stays."""
        existing = yield from self.read_one("WHERE agent_id = ?", agent.agent_id)
        if existing is not None:
            since, by = existing.created_at, existing.created_by
            agent = msgspec.structs.replace(agent, created_at=since, created_by=by)
        yield self.put(agent)
        return agent


class GrantRecord(Grant, frozen=True, gc=False, kw_only=True):
    """A grant as it is stored."""

    mac: bytes | None = None


class GrantTable(SignedTable[GrantRecord]):
    """All grants, expired ones too."""

    _table = Table("grants", GrantRecord, json={"kinds", "actions", "limits"})
    noun = "grant"

    async def all(self) -> list[GrantRecord]:
        """Read all grants."""
        return await self.read_all()

    async def of_agents(self, agent_ids: Sequence[str]) -> list[GrantRecord]:
        """Read the grants of some agents."""
        return await self.read_all(f"WHERE agent_id IN ({placeholders(agent_ids)})", *agent_ids)

    # -- parts of a transaction

    def give(self, grant: Grant) -> Script[GrantRecord]:
        """Store a grant; where there is one of the same key, that gets the new terms."""
        found = yield from self.read_one(f"WHERE {_SAME}", *self._same(grant.key))
        if found is not None:
            grant = regrant(found, grant)
        # A row of this key that carries no valid MAC is in the way.
        yield Query(
            f"DELETE FROM grants WHERE {_SAME} AND id <> ?", (*self._same(grant.key), grant.id)
        )
        fields = {name: getattr(grant, name) for name in Grant.__struct_fields__}
        record = GrantRecord(**fields)
        yield self.put(record)
        return record

    def check_server(self, server_id: str) -> Script[bool]:
        """Whether there is a server for a grant to be for."""
        if server_id == ANY:
            return True
        return bool((yield Query("SELECT id FROM servers WHERE id = ?", (server_id,))))

    def _same(self, key: GrantKey) -> tuple[str, ...]:
        kinds: str = self._table.value("kinds", key.kinds)
        return key.agent_id, key.server_id, key.tool_name, kinds


class TokenRecord(Token, frozen=True, gc=False, kw_only=True):
    """A token as it is stored."""

    mac: bytes | None = None


class TokenTable(SignedTable[TokenRecord]):
    """All tokens of grants; those that are good for one call are spent here."""

    _table = Table("tokens", TokenRecord)

    async def relevant(self, now: float) -> list[TokenRecord]:
        """Read the tokens that a call may still carry or need: live ones, and used ones."""
        return await self.read_all(f"WHERE {_RELEVANT}", now, now - REPLAYED)

    async def of_agents(self, agent_ids: Sequence[str], now: float) -> list[TokenRecord]:
        """Read the tokens that calls of these agents may still carry or need."""
        return await self.read_all(
            f"WHERE {_RELEVANT} AND grant_id IN"
            f" (SELECT id FROM grants WHERE agent_id IN ({placeholders(agent_ids)}))",
            now,
            now - REPLAYED,
            *agent_ids,
        )

    # -- parts of a transaction

    def spend(self, token_id: str, now: float) -> Script[bool]:
        """Use a token that is good for one call; whether this call has it.

        Of calls that race for it, in this process or in others, exactly one does: the others wait
        for its transaction. A token goes with its grant, so a revoked grant has none to spend.
        """
        token = yield from self.read_one("WHERE id = ?", token_id)
        if token is None or token.used_at is not None or not token.is_live(now):
            return False
        used = self.sign(msgspec.structs.replace(token, used_at=now))
        rows = yield Query(
            "UPDATE tokens SET used_at = ?, mac = ? WHERE id = ? AND used_at IS NULL"
            " AND revoked_at IS NULL RETURNING id",
            (now, used.mac, token_id),
        )
        return bool(rows)

    def issue(self, token: Token, grant_id: str, now: float) -> Script[TokenRecord]:
        """Store a new token of a grant; those before it that were not used are good no more."""
        yield from self.revoke_of(grant_id, now)
        fields = {name: getattr(token, name) for name in Token.__struct_fields__}
        record = TokenRecord(**{**fields, "grant_id": grant_id})
        yield self.put(record)
        return record

    def revoke_of(self, grant_id: str, now: float) -> Script[int]:
        """Revoke the unused tokens of a grant; return how many."""
        wanted = "WHERE grant_id = ? AND revoked_at IS NULL AND used_at IS NULL"
        tokens = yield from self.read_many(wanted, grant_id)
        for token in tokens:
            yield self.put(msgspec.structs.replace(token, revoked_at=now))
        return len(tokens)


# -- approvals

PENDING: Final = ApprovalState.PENDING
APPROVED: Final = ApprovalState.APPROVED


class ApprovalRecord(SignedRecord, frozen=True):
    """A request for approval as it is stored."""

    id: str
    binding: str
    agent_id: str
    asked_by: str
    """The principal that made the call."""
    asked_role: str
    server_id: str
    tool_name: str
    grant_id: str
    risk: str
    """Why the call is risky."""
    preview: str
    """The redacted arguments."""
    arguments: bytes
    """The sealed arguments."""
    correlation_id: str | None
    requested_at: float
    expires_at: float
    state: ApprovalState = PENDING
    decided_at: float | None = None
    decided_by: str | None = None
    note: str | None = None
    closed_at: float | None = None

    def state_at(self, now: float) -> ApprovalState:
        """Return what it is at a time: what nobody used in time has expired."""
        is_over = self.state in (PENDING, APPROVED) and now >= self.expires_at
        return ApprovalState.EXPIRED if is_over else self.state


class ApprovalQuery(NamedTuple):
    """Which requests to read, the newest first."""

    now: float
    is_open: bool = False
    """Only those that wait for somebody."""
    before: tuple[float, str] | None = None
    limit: int = 100


_APPROVALS: Final = "approvals"
"""The topic that lets one request be made at a time."""
_COUNT_PENDING: Final = (
    "SELECT count(*) FROM approvals WHERE agent_id = ? AND state = ? AND expires_at > ?"
)
_OPEN: Final = "WHERE binding = ? AND closed_at IS NULL"


class ApprovalTable(SignedTable[ApprovalRecord]):
    """All requests for approval that are kept."""

    _table = Table("approvals", ApprovalRecord)
    noun = "request for approval"
    protected = ("arguments", "mac")

    async def read(self, asked: ApprovalQuery) -> list[ApprovalRecord]:
        """Read requests, the newest first."""
        where, args = make_where(
            ("state = ? AND expires_at > ?", (PENDING.value, asked.now)) if asked.is_open else None,
            None if asked.before is None else ("(requested_at, id) < (?, ?)", asked.before),
        )
        rest = f"{where} ORDER BY requested_at DESC, id DESC LIMIT ?"
        return await self.read_all(rest, *args, asked.limit)

    @transaction()
    def add(
        self, new: ApprovalRecord, most: int | None = None
    ) -> Script[tuple[ApprovalRecord | None, bool]]:
        """Store a request, unless the same call has one; return that, and whether it is new.

        None is stored where ``most`` of the agent wait for somebody already, however many come at
        once.
        """
        now = new.requested_at
        if most is not None:
            yield bump(_APPROVALS, by=0)
        add = self._table.add(
            self.sign(new), " ON CONFLICT (binding) WHERE closed_at IS NULL DO NOTHING RETURNING id"
        )
        found = yield from self.read_one(_OPEN, new.binding)
        if found is not None and now < found.expires_at:
            return found, False
        if found is not None:
            over = msgspec.structs.replace(found, state=found.state_at(now), closed_at=now)
            yield from self._replace(over, found.state)
        if most is not None:
            waiting = new.agent_id, PENDING.value, now
            if int((yield Query(_COUNT_PENDING, waiting))[0][0]) >= most:
                return None, False
        if (yield add):
            return new, True
        found = yield from self.read_one(_OPEN, new.binding)
        if found is not None:  # another process was first
            return found, False
        yield Query(f"DELETE FROM approvals {_OPEN}", (new.binding,))  # it has no valid MAC
        yield add
        return new, True

    async def find_open(self, binding: str) -> ApprovalRecord | None:
        """Read the request of a call that is neither used nor replaced."""
        return await self.read_first(_OPEN, binding)

    @transaction()
    def decide(
        self, approval_id: str, state: ApprovalState, at: float, by: str, note: str | None
    ) -> Script[ApprovalRecord | None]:
        """Store a decision; None if it was decided about before, or has expired. Raises NotFound.

        Of two that decide at once, one does.
        """
        found = yield from self.get_one(approval_id)
        if found.state_at(at) is not PENDING:
            return None
        new = msgspec.structs.replace(found, state=state, decided_at=at, decided_by=by, note=note)
        return new if (yield from self._replace(new, PENDING)) else None

    def spend(self, binding: str, now: float) -> Script[bool]:
        """Use up the approval of a call, inside a transaction; whether there was one.

        Safe against races: the update matches a row that is approved and open, and only one of two
        transactions finds it so.
        """
        found = yield from self.read_one(_OPEN, binding)
        if found is None or found.state_at(now) is not APPROVED:
            return False
        used = msgspec.structs.replace(found, state=ApprovalState.USED, closed_at=now)
        return (yield from self._replace(used, APPROVED))

    def reveal(self, record: ApprovalRecord) -> bytes:
        """Decrypt the arguments of a request. Raises VaultError."""
        return self._open(record.arguments, record.id)

    @transaction()
    def retire(self, before: float) -> Script[int]:
        """Remove requests that ended before a time; return how many."""
        rows = yield Query("DELETE FROM approvals WHERE expires_at < ? RETURNING id", (before,))
        return len(rows)

    def _replace(self, new: ApprovalRecord, expected: ApprovalState) -> Script[bool]:
        """Store a record in place of the one with its id, if that is as expected."""
        signed = self.sign(new)
        # A rotation may have sealed the arguments anew since they were read.
        names = "state", "decided_at", "decided_by", "note", "closed_at", "arguments", "mac"
        rows = yield self._table.update(
            {name: getattr(signed, name) for name in names},
            "WHERE id = ? AND state = ? AND closed_at IS NULL RETURNING id",
            signed.id,
            expected.value,
        )
        return bool(rows)
