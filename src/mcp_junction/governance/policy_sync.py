"""PolicySync and ClaimGrants: keep LivePolicy as the store, and the config's door, have it.

The service polls the generations of the store. When that of the policy is another, only the agents
that changed since are read. Grants that expire are let go of in time; and after five seconds
without the store nothing is allowed by grants, because a revocation may have been missed. What
follows from a change for clients and running calls is decided elsewhere (``sessions/revocation``).

ClaimGrants puts in force what the claims of access tokens give to agents. An agent that shows one
has what its token gives beside what it was granted in the store. Two tokens of one agent that give
different things are two *grantees*: neither has what only the other gives. A pattern names a server
that may not be there yet; grants are made anew when servers change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from mcp_junction.config.door import DoorConfig
from mcp_junction.errors import Problem, StoreUnavailable
from mcp_junction.governance.condition_compiler import ConditionCompiler
from mcp_junction.policy.conditions import GrantCondition
from mcp_junction.policy.decision import CallTarget, covers
from mcp_junction.policy.grants import Grant, GrantSource, parse_target
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import Grants, Principal, Role
from mcp_junction.policy.tokens import NONE
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.store.policy import TOPIC, AgentPolicy, PolicyTables
from mcp_junction.store.retention import DAY, remove_regularly
from mcp_junction.store.store import Store
from mcp_junction.upstream.events import ServerChange, ServerChanged

log = logging.getLogger("mcp_junction.governance")

BLIND_AFTER: Final = 5.0
"""Seconds without the store after which nothing is allowed by grants."""
_CHECK_EVERY: Final = 0.5
"""Seconds between looks at the time, unless a grant expires before."""
_SHORTEST: Final = 0.001
_COMPILING: Final = 2.0
"""Seconds that reading a policy may wait for its conditions."""


class AgentChange(NamedTuple):
    """An agent whose grants or tokens are not what they were."""

    agent_id: str
    """Its id; or that of a grantee, see ``LivePolicy.put_extra``."""
    before: Grants | None
    """What it was shown before; None is everything."""


ChangeSink = Callable[[Sequence[AgentChange]], None]


class PolicySync:
    """Reads the policy from the store, and follows what this and other processes change."""

    def __init__(
        self,
        store: Store,
        policy: LivePolicy,
        clock: Clock | None = None,
        wall_clock: Callable[[], float] = time.time,
        conditions: ConditionCompiler | None = None,
    ) -> None:
        """``conditions`` compiles those of grants; the policy has what it compiled."""
        self._store = store
        self._policy = policy
        self._clock = clock or SystemClock()
        self._wall_clock = wall_clock
        self.conditions = conditions or ConditionCompiler()
        self._uncompiled: set[str] = set()
        """Agents whose conditions could not be compiled in time: those grants admit nothing yet."""
        self._generation = -1
        self._read_at = self._clock.now()
        self._reading = asyncio.Lock()
        """What is read later is put later: never an older policy over a newer one."""
        self.sinks: list[ChangeSink] = []
        """Are told of every change, after it holds."""

    async def open(self) -> None:
        """Read the whole policy. Raises StoreUnavailable."""
        generation = (await self._store.generations()).get(TOPIC, 0)
        async with self._reading:
            await self._read_all(generation)

    @property
    def is_blind(self) -> bool:
        """Whether the store has been away for so long that nothing is allowed by grants."""
        return self._clock.now() - self._read_at >= BLIND_AFTER

    async def follow(self, generations: Mapping[str, int], began: float) -> None:
        """Take over what has changed; ``began`` is when the reading of ``generations`` began.

        An outage raises nothing: see ``is_blind``.
        """
        generation = generations.get(TOPIC, 0)
        if generation != self._generation:
            try:
                async with self._reading:
                    await self._read_changed(generation)
            except StoreUnavailable:
                return
        self._read_at = began
        self._policy.set_blind(False)

    async def refresh(self, *agent_ids: str) -> None:
        """Take over what was changed of these agents; it is in force then.

        If it cannot be read, they may do nothing until the poll has read it.
        """
        async with self._reading:
            now = self._wall_clock()
            try:
                found = await self._store.policy.load_agents(agent_ids, now)
            except StoreUnavailable:
                found = {agent_id: AgentPolicy([], []) for agent_id in agent_ids}
            await self._compile_and_put(found, now)

    async def run(self) -> None:
        """Let go of grants in time, and of all while the store is away."""
        while True:
            self.keep_time()
            if self._uncompiled:
                await self._compile_late()
            expiry, pause = self._policy.next_expiry, _CHECK_EVERY
            if expiry is not None:
                pause = min(pause, max(expiry - self._wall_clock(), _SHORTEST))
            await self._clock.sleep(pause)

    def keep_time(self) -> None:
        """Let go of what the time has ended."""
        if self.is_blind and not self._policy.is_blind:
            self._policy.set_blind(True)
            log.error("the store is away: grants allow nothing until it is back")
        now = self._wall_clock()
        expiring = self._policy.find_expiring(now)
        if expiring:
            changes = [AgentChange(one, self._shown(one)) for one in expiring]
            self._policy.expire(now)
            self._tell(changes)

    # -- parts

    async def _read_all(self, generation: int) -> None:
        now = self._wall_clock()
        found = await self._store.policy.load(now)
        gone = [agent for agent in self._policy.agents if agent not in found]
        without = {agent: AgentPolicy([], []) for agent in gone}
        await self._compile_and_put({**found, **without}, now)
        self._generation = generation

    async def _read_changed(self, generation: int) -> None:
        """Read the agents that changed; all of them, if the store does not say which."""
        tables = self._store.policy
        known = self._generation
        changed = await tables.changed_since(known) if known <= generation else {}
        last = max(changed.values(), default=0)
        if last < generation:  # somebody restored an older store, or tampered with it
            await self._read_all(generation)
            return
        now = self._wall_clock()
        found = await tables.load_agents(changed, now)
        await self._compile_and_put(found, now)
        self._generation = last

    async def _compile_and_put(self, found: Mapping[str, AgentPolicy], now: float) -> None:
        held = await self._compile(found)
        self._put(found, now)
        del held  # the grants in force hold them now

    async def _compile(self, found: Mapping[str, AgentPolicy]) -> list[GrantCondition]:
        """Compile the conditions of agents; what takes long must not hold up a revocation.

        Nor must a child process that cannot be started.
        """
        sources = {grant.when for policy in found.values() for grant in policy.grants} - {""}
        if not sources:
            return []
        try:
            async with asyncio.timeout(_COMPILING):
                return await self.conditions.compile_all(sources)
        except (TimeoutError, OSError):
            late = {agent for agent, one in found.items() if any(g.when for g in one.grants)}
            self._uncompiled |= late
            return []

    async def _compile_late(self) -> None:
        """Compile what could not be compiled in time, and take it into force."""
        agents, self._uncompiled = self._uncompiled, set()
        try:
            for agent_id in list(agents):
                await self._compile_agent(agent_id)
                agents.discard(agent_id)
        except OSError as error:  # too many files are open, say: no other can be compiled, either
            log.error("the conditions of %d agents cannot be compiled now: %s", len(agents), error)
        finally:
            self._uncompiled |= agents

    async def _compile_agent(self, agent_id: str) -> None:
        grants = self._policy.of(agent_id)
        held = await self.conditions.compile_all(grant.when for grant in grants.grants)
        if self._policy.of(agent_id) is grants:
            before = self._shown(agent_id)
            tokens = [t for some in self._policy.tokens_of(agent_id).values() for t in some]
            now, kind = self._wall_clock(), grants.agent_type
            self._policy.put(agent_id, grants.grants, tokens, now, kind)
            self._tell([AgentChange(agent_id, before)])
        del held  # the grants in force hold them now

    def _put(self, found: Mapping[str, AgentPolicy], now: float) -> None:
        changes = []
        for agent_id, (grants, tokens, agent_type) in found.items():
            is_same_type = self._policy.of(agent_id).agent_type == agent_type
            if is_same_type and self._is_known(agent_id, grants, tokens):
                continue
            whose = (agent_id, *self._policy.grantees_of(agent_id))
            changes += [AgentChange(one, self._shown(one)) for one in whose]
            if grants:
                self._policy.put(agent_id, grants, tokens, now, agent_type)
            else:
                self._policy.remove(agent_id, now)
        if changes:
            self._tell(changes)

    def put_extra(self, grantee: str, agent_id: str, grants: Sequence[Grant]) -> None:
        """Let a grantee have grants that the store does not have, in place of those it had."""
        is_known = grantee in self._policy.grantees_of(agent_id)
        change = AgentChange(grantee, self._shown(grantee))
        self._policy.put_extra(grantee, agent_id, grants, self._wall_clock())
        if is_known:  # else it has nothing open
            self._tell([change])

    def remove_extra(self, grantee: str) -> None:
        """Forget a grantee that has nothing open any more."""
        self._policy.remove_extra(grantee)

    def _is_known(self, agent_id: str, grants: Sequence[object], tokens: Sequence[object]) -> bool:
        """Whether an agent has just these grants and tokens already."""
        known = self._policy.tokens_of(agent_id).values()
        return _equal(self._policy.of(agent_id).grants, grants) and _equal(
            [token for some in known for token in some], tokens
        )

    def _shown(self, agent_id: str) -> Grants | None:
        return self._policy.grants(Principal(agent_id, Role.AGENT))

    def _tell(self, changes: Sequence[AgentChange]) -> None:
        for sink in self.sinks:
            try:
                sink(changes)
            except Exception:  # the policy holds whatever becomes of the news of it
                log.exception("a sink of policy changes failed")


def _equal(some: Iterable[object], others: Sequence[object]) -> bool:
    """Whether both hold the same, in whatever order."""
    one, other = list(some), list(others)
    return len(one) == len(other) and set(one) == set(other)


_FIRST: Final = 90.0
"""Seconds after the start: so a service that is restarted every day removes rows, too."""


async def remove_old_grants_daily(
    days: int, tables: PolicyTables, clock: Clock, now: Callable[[], float] = time.time
) -> None:
    """Remove grants and tokens that have been of no use for ``days`` days, once a day."""

    async def remove() -> None:
        removed = await tables.retire(now() - days * DAY)
        if removed:
            log.info("%d grants and tokens ended more than %d days ago and are gone", removed, days)

    await clock.sleep(_FIRST)
    await remove_regularly("grants and tokens", remove, clock, again=DAY / 100)


# -- what access tokens give

_CHANGES: Final = (
    ServerChange.ADDED,
    ServerChange.RENAMED,
    ServerChange.REPLACED,
    ServerChange.REMOVED,
)


class ClaimGrants:
    """The grants of all conditions, and of the agents whose tokens fulfil some."""

    def __init__(self, door: DoorConfig, sync: PolicySync, server_ids: Mapping[str, str]) -> None:
        self._door = door
        self._sync = sync
        self._server_ids = server_ids
        self._known: dict[str, str] = {}
        self._grantees: dict[str, tuple[str, tuple[str, ...]]] = {}

    def admit(self, agent_id: str, conditions: tuple[str, ...]) -> str:
        """Put in force what these conditions give an agent; return its grantee."""
        mark = sha256("\n".join(conditions).encode()).hexdigest()[:12]
        grantee = f"{agent_id}#{mark}"
        if grantee not in self._grantees:
            self._grantees[grantee] = agent_id, conditions
            self._sync.put_extra(grantee, agent_id, self._make(agent_id, conditions))
        return grantee

    def forget_others(self, in_use: Container[str]) -> None:
        """Forget the grantees that neither have a token nor anything open."""
        for grantee in [one for one in self._grantees if one not in in_use]:
            del self._grantees[grantee]
            self._sync.remove_extra(grantee)

    def follow(self, event: ServerChanged) -> None:
        """Make the grants anew when names lead to other servers."""
        if event.change not in _CHANGES or self._known == dict(self._server_ids):
            return
        self._known = dict(self._server_ids)
        for grantee, (agent_id, conditions) in self._grantees.items():
            self._sync.put_extra(grantee, agent_id, self._make(agent_id, conditions))

    def of(self, agent_id: str) -> list[Grant]:
        """List what the tokens give that an agent has shown here."""
        found = {
            grant.id: grant
            for agent, conditions in self._grantees.values()
            if agent == agent_id
            for grant in self._make(agent, conditions)
        }
        return list(found.values())

    @property
    def all(self) -> list[Grant]:
        """List what the door gives to any agent that fulfils a condition."""
        return self._make(f"{self._door.alias}:*", tuple(self._door.grants))

    def find_conditions(self, agent_id: str, target: CallTarget) -> list[str]:
        """Say which tokens would let an agent of the door call something."""
        if not agent_id.startswith(f"{self._door.alias}:"):
            return []
        return [
            f"its access token has {condition}"
            for condition in self._door.grants
            if any(covers(grant, target) for grant in self._make(agent_id, (condition,)))
        ]

    def _make(self, agent_id: str, conditions: tuple[str, ...]) -> list[Grant]:
        """Make the grants of conditions, as far as they name servers that there are."""
        servers = {ref: one for name, one in self._server_ids.items() for ref in (one, name)}
        found = []
        for condition in conditions:
            for pattern in self._door.grants[condition]:
                target = parse_target(pattern, servers)
                if not isinstance(target, Problem):
                    mark = sha256(f"{condition}\n{pattern}".encode()).hexdigest()[:12]
                    grant = Grant(
                        f"door-{mark}",
                        agent_id,
                        *target,
                        token_mode=NONE,  # the access token is one, and short-lived
                        granted_by="door",
                        note=f"the door gives it to access tokens with {condition}",
                        source=GrantSource.DOOR,
                    )
                    found.append(grant)
        return found
