"""AgentTable: stores the agents that may be given grants. Their keys are in ``keys.py``."""

from __future__ import annotations

from typing import Final

import msgspec

from mcp_junction.policy.grants import GrantSource
from mcp_junction.store.database import Database, Script
from mcp_junction.store.signed import SignedRecord, SignedTable, Signer
from mcp_junction.store.table import Table

KEY: Final = ("agent_id",)


class AgentRecord(SignedRecord, frozen=True):
    """An agent."""

    agent_id: str
    agent_type: str = ""
    declared_tools: tuple[str, ...] = ()
    """What it was bound to when it was registered, each as ``server:tool``."""
    created_at: float = 0.0
    created_by: str = ""


class AgentTable(SignedTable[AgentRecord]):
    """All agents that were registered, or given a grant. Changed by ``PolicyTables``."""

    def __init__(self, database: Database, signer: Signer) -> None:
        super().__init__(database, signer, Table("agents", AgentRecord, json={"declared_tools"}))

    async def all(self) -> list[AgentRecord]:
        """Read all agents, by id."""
        return sorted(await self.read_all(), key=lambda agent: agent.agent_id)

    async def find(self, agent_id: str) -> AgentRecord | None:
        """Read one agent, if there is one."""
        found = await self.read_all("WHERE agent_id = ?", agent_id)
        return found[0] if found else None

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
        yield self.put(agent, KEY)
        return agent

    def replace(self, agent: AgentRecord) -> Script[AgentRecord]:
        """Store what an agent is now; when it came about, and by whom, stays."""
        existing = yield from self.read_one("WHERE agent_id = ?", agent.agent_id)
        if existing is not None:
            since, by = existing.created_at, existing.created_by
            agent = msgspec.structs.replace(agent, created_at=since, created_by=by)
        yield self.put(agent, KEY)
        return agent
