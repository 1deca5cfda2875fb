"""PolicyTables: all changes of agents, grants and tokens, each in one transaction.

A change adds to the counter of the topic ``policy``, which also lets only one be made at a time,
and notes the agent in ``policy_changes``: other processes find the agents that changed since the
generation that they know, and read only those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import InvalidChange, NotFound
from mcp_junction.policy.grants import Binding, Grant
from mcp_junction.policy.tokens import Token
from mcp_junction.resilience.idempotency import owner_of
from mcp_junction.store.database import Database, Query, Script, bump, placeholders
from mcp_junction.store.grants import (
    AgentRecord,
    AgentTable,
    GrantRecord,
    GrantTable,
    TokenRecord,
    TokenTable,
)
from mcp_junction.store.keys import KeyTable
from mcp_junction.store.protected import SignedRecord, SignedTable, StoreVault
from mcp_junction.store.table import StoreTable, Table, transaction

TOPIC: Final = "policy"
_AT_ONCE: Final = 500
"""Agents that are read by one statement."""
_LOCK: Final = bump(TOPIC, by=0)
"""Lets one change be made at a time, until its transaction ends."""

MakeToken = Callable[[Grant], Token | None]
"""Makes the token of a grant; None where its mode needs none."""


class AgentPolicy(NamedTuple):
    """The grants and tokens of one agent."""

    grants: list[GrantRecord]
    tokens: list[TokenRecord]
    agent_type: str = ""
    """What it was registered as; read only where a grant has a condition."""


class GivenGrant(NamedTuple):
    """A grant that was given, and its new token, if it needs one."""

    grant: GrantRecord
    token: TokenRecord | None


class RemovedAgent(NamedTuple):
    """What ended with an agent."""

    grants: list[GrantRecord]
    keys: list[str]
    """The ids of its keys, which are revoked."""


class _PolicyState(SignedRecord, frozen=True):
    """Says that agents from before there were grants have been given theirs."""

    id: int
    migrated_at: float


class _PolicyStateTable(SignedTable[_PolicyState]):
    _table = Table("policy_state", _PolicyState)


class PolicyTables(StoreTable):
    """Agents, grants and tokens."""

    def __init__(self, database: Database, vault: StoreVault, keys: KeyTable) -> None:
        super().__init__(database)
        self.agents = AgentTable(database, vault)
        self.grants = GrantTable(database, vault)
        self.tokens = TokenTable(database, vault)
        self._state = _PolicyStateTable(database, vault)
        self._keys = keys

    # -- reading

    async def load(self, now: float) -> dict[str, AgentPolicy]:
        """Read the policy of every agent that has a grant."""
        grants, tokens = await self.grants.all(), await self.tokens.relevant(now)
        return await self._add_types(_group(grants, tokens))

    async def load_agents(self, agent_ids: Iterable[str], now: float) -> dict[str, AgentPolicy]:
        """Read the policy of some agents; those that have no grant, too."""
        found = {}
        for some in _in_parts(sorted(agent_ids)):
            grants = await self.grants.of_agents(some)
            tokens = await self.tokens.of_agents(some, now)
            found.update(_group(grants, tokens, some))
        return await self._add_types(found)

    async def _add_types(self, found: dict[str, AgentPolicy]) -> dict[str, AgentPolicy]:
        """Add the types of agents that have a grant with a condition."""
        wanted = [a for a, policy in found.items() if any(g.when for g in policy.grants)]
        for some in _in_parts(wanted):
            where = f"WHERE agent_id IN ({placeholders(some)})"
            for agent in await self.agents.read_all(where, *some):
                policy = found[agent.agent_id]
                found[agent.agent_id] = policy._replace(agent_type=agent.agent_type)
        return found

    async def changed_since(self, generation: int) -> dict[str, int]:
        """Read which agents changed after a generation, and in which they changed last."""
        sql = "SELECT agent_id, generation FROM policy_changes WHERE generation > ?"
        return dict(await self._read_rows(lambda row: (str(row[0]), int(row[1])), sql, generation))

    # -- changing

    @transaction()
    def add_agent(self, agent: AgentRecord, at: float) -> Script[AgentRecord]:
        """Make an agent, unless there is one of that id; return the one that there is."""
        yield from self._mark(at, agent.agent_id)
        return (yield from self.agents.add_missing(agent))

    @transaction()
    def grant(self, grant: Grant, agent: AgentRecord, make_token: MakeToken) -> Script[GivenGrant]:
        """Give a grant, and a new token if it needs one; make its agent if there is none.

        The same agent, server, pattern and kinds again are the same grant, with the new terms.
        Raises NotFound when the server is gone.
        """
        yield from self._mark(grant.granted_at, grant.agent_id)
        yield from self.agents.add_missing(agent)
        return (yield from self._give(grant, make_token))

    @transaction()
    def bind(
        self,
        agent: AgentRecord,
        at: float,
        work_out: Callable[[Sequence[Grant]], Binding],
        make_token: MakeToken,
    ) -> Script[tuple[AgentRecord, Binding, list[GivenGrant]]]:
        """Store an agent, and the grants that ``work_out`` finds that it has to have.

        Raises InvalidChange with the problems of the binding, and NotFound when a server is gone.
        """
        yield from self._mark(at, agent.agent_id)
        rows = yield from self.grants.read_many("WHERE agent_id = ?", agent.agent_id)
        binding = work_out(rows)
        if binding.problems:
            raise InvalidChange(list(binding.problems))
        agent = yield from self.agents.replace(agent)
        for grant in binding.removed:
            yield from _drop_grants("id", grant.id)
        given = []
        for grant in (*binding.added, *binding.kept):
            made = yield from self._give(msgspec.structs.replace(grant, granted_at=at), make_token)
            given.append(made)
        return agent, binding, given

    @transaction()
    def revoke(self, grant_id: str, at: float) -> Script[GrantRecord]:
        """Remove a grant and its tokens. Raises NotFound."""
        grant = yield from self._take(grant_id, at)
        yield from _drop_grants("id", grant_id)
        return grant

    @transaction()
    def renew_token(self, grant_id: str, at: float, make_token: MakeToken) -> Script[GivenGrant]:
        """Make a new token of a grant; those before it are good no more. Raises NotFound."""
        grant = yield from self._take(grant_id, at)
        return GivenGrant(grant, (yield from self._issue(grant, at, make_token)))

    @transaction()
    def revoke_tokens(self, grant_id: str, at: float) -> Script[tuple[GrantRecord, int]]:
        """Revoke the unused tokens of a grant; return it and how many. Raises NotFound."""
        grant = yield from self._take(grant_id, at)
        return grant, (yield from self.tokens.revoke_of(grant_id, at))

    @transaction()
    def remove_agent(self, agent_id: str, at: float, by: str) -> Script[RemovedAgent]:
        """Remove an agent with its grants, tokens, limits and kept results, and revoke its keys.

        Another agent may get its id. Raises NotFound.
        """
        yield from self._mark(at, agent_id)
        agent = yield from self.agents.read_one("WHERE agent_id = ?", agent_id)
        grants = yield from self.grants.read_many("WHERE agent_id = ?", agent_id)
        keys = yield from self._keys.revoke_of_agent(agent_id, at, by)
        if agent is None and not grants and not keys:
            raise NotFound(f"there is no agent {agent_id!r}")
        yield from _drop_grants("agent_id", agent_id)
        yield Query("DELETE FROM agents WHERE agent_id = ?", (agent_id,))
        yield Query("DELETE FROM idempotency_claims WHERE agent_id = ?", (owner_of(agent_id),))
        # In the order in which they are stored, and without what is removed then: no deadlock.
        for grant_id in sorted(grant.id for grant in grants):
            sql = "DELETE FROM limit_windows WHERE grant_id = ? AND expires_at > ?"
            yield Query(sql, (grant_id, at))
        return RemovedAgent(grants, keys)

    @transaction()
    def retire(self, before: float) -> Script[int]:
        """Remove what has been of no use since a time; return how many grants and tokens."""
        tokens = yield Query(
            "DELETE FROM tokens WHERE expires_at < ? OR used_at < ? OR revoked_at < ? RETURNING id",
            (before, before, before),
        )
        rows = yield Query("SELECT id, agent_id FROM grants WHERE expires_at < ?", (before,))
        if rows:
            yield from self._mark(before, *sorted({row[1] for row in rows}))
        for row in rows:
            yield from _drop_grants("id", row[0])
        yield Query(
            "DELETE FROM policy_changes WHERE at < ? AND generation < (SELECT max(generation)"
            " FROM policy_changes) AND agent_id NOT IN (SELECT agent_id FROM grants)",
            (before,),
        )
        return len(tokens) + len(rows)

    # -- once in the life of a store

    async def is_migrated(self) -> bool:
        """Whether agents from before there were grants have been given theirs.

        True as well when that is not known, because somebody tampered with the record of it.
        """
        return await self._database.read(Query("SELECT id FROM policy_state"), bool)

    @transaction()
    def migrate(self, grants: Sequence[Grant], by: str, at: float) -> Script[int]:
        """Give these grants to agents from before there were any; return how many.

        Once in the life of a store. Returns 0 as well when another process was first, or when there
        is a grant already: then somebody must have removed the record of it.
        """
        yield _LOCK
        if (yield Query("SELECT id FROM policy_state")):
            return 0
        was_done = yield from self.grants.read_one("LIMIT 1")
        yield self._state.put(_PolicyState(1, at))
        if was_done is not None or not grants:
            return 0
        yield from self._mark(at, *sorted({grant.agent_id for grant in grants}))
        for grant in grants:
            yield from self.agents.add_missing(
                AgentRecord(grant.agent_id, created_at=at, created_by=by)
            )
            yield from self.grants.give(grant)
        return len(grants)

    # -- parts of a transaction

    def drop_server(self, server_id: str, at: float) -> Script[list[GrantRecord]]:
        """Remove the grants for a server that is removed, with their tokens; return them."""
        yield _LOCK
        grants = yield from self.grants.read_many("WHERE server_id = ?", server_id)
        yield from _drop_grants("server_id", server_id)
        if grants:
            yield from self._mark(at, *sorted({grant.agent_id for grant in grants}))
        return grants

    def _give(self, grant: Grant, make_token: MakeToken) -> Script[GivenGrant]:
        if not (yield from self.grants.check_server(grant.server_id)):
            raise NotFound(f"there is no server with the id {grant.server_id!r} any more")
        given = yield from self.grants.give(grant)
        return GivenGrant(given, (yield from self._issue(given, given.granted_at, make_token)))

    def _issue(
        self, grant: GrantRecord, at: float, make_token: MakeToken
    ) -> Script[TokenRecord | None]:
        token = make_token(grant)
        if token is None:
            yield from self.tokens.revoke_of(grant.id, at)
            return None
        return (yield from self.tokens.issue(token, grant.id, at))

    def _take(self, grant_id: str, at: float) -> Script[GrantRecord]:
        """Read a grant to be changed, and note that its agent changes. Raises NotFound."""
        yield _LOCK
        grant = yield from self.grants.get_one(grant_id)
        yield from self._mark(at, grant.agent_id)
        return grant

    def _mark(self, at: float, *agent_ids: str) -> Script[None]:
        """Note that something of these agents changes."""
        generation = int((yield bump(TOPIC))[0][0])
        for agent_id in agent_ids:
            yield Query(
                "INSERT INTO policy_changes (agent_id, generation, at) VALUES (?, ?, ?)"
                " ON CONFLICT (agent_id) DO UPDATE SET generation = excluded.generation,"
                " at = excluded.at",
                (agent_id, generation, at),
            )


def _group(
    grants: Iterable[GrantRecord], tokens: Iterable[TokenRecord], agent_ids: Iterable[str] = ()
) -> dict[str, AgentPolicy]:
    """Sort grants and tokens by agent; tokens of grants that are not there are left out."""
    found = {agent_id: AgentPolicy([], []) for agent_id in agent_ids}
    agents: dict[str, AgentPolicy] = {}
    for grant in grants:
        agents[grant.id] = found.setdefault(grant.agent_id, AgentPolicy([], []))
        agents[grant.id].grants.append(grant)
    for token in tokens:
        if token.grant_id in agents:
            agents[token.grant_id].tokens.append(token)
    return found


def _drop_grants(column: str, value: str) -> Script[None]:
    """Remove the grants with a value in a column, and their tokens."""
    which = f"FROM grants WHERE {column} = ?"
    yield Query(f"DELETE FROM tokens WHERE grant_id IN (SELECT id {which})", (value,))
    yield Query(f"DELETE {which}", (value,))


def _in_parts(agent_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list into parts that one statement can be about."""
    for start in range(0, len(agent_ids), _AT_ONCE):
        yield agent_ids[start : start + _AT_ONCE]
