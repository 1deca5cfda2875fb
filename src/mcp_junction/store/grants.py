"""The tables of agents, their grants and the tokens of these. Changed by ``PolicyTables``.

What a grant means is in ``policy/grants.py``; when a call needs a token, in ``policy/tokens.py``.
The keys of agents are in ``keys.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mcp_junction.policy.grants import ANY, Grant, GrantKey, GrantSource, regrant
from mcp_junction.policy.tokens import Token
from mcp_junction.store.database import Query, Script, placeholders
from mcp_junction.store.protected import SignedRecord, SignedTable
from mcp_junction.store.table import Table

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

    async def all(self) -> list[GrantRecord]:
        """Read all grants."""
        return await self.read_all()

    async def of_agents(self, agent_ids: Sequence[str]) -> list[GrantRecord]:
        """Read the grants of some agents."""
        return await self.read_all(f"WHERE agent_id IN ({placeholders(agent_ids)})", *agent_ids)

    async def find(self, grant_id: str) -> GrantRecord | None:
        """Read one grant, if there is one."""
        return await self.read_first("WHERE id = ?", grant_id)

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
