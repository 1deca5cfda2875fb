"""LivePolicy: the grants and tokens of all agents as they are now, and decisions by them.

It is what lists, searches and calls ask. A change of one agent's grants touches that agent alone:
its generation changes, its remembered decisions are void at once, and it gets another Scope. It
neither reads the store nor sets timers: whoever does tells it (``put``, ``expire``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mcp_junction.policy.conditions import CallReader, GrantCondition
from mcp_junction.policy.decision import (
    CallTarget,
    PolicyDecision,
    Tokens,
    decide_by_grants,
    decide_by_role,
    deny_by_default,
)
from mcp_junction.policy.explanation import Explanation, explain
from mcp_junction.policy.grant_set import GrantSet, GrantsInForce
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.principal import Grants, Principal, Role
from mcp_junction.policy.tokens import PresentedToken, Token

DEFAULT_TTL: Final = 5 * 60.0
MAX_DECISIONS: Final = 10_000
_NEVER: Final = float("inf")
STORE: Final = "store"
"""The rule that denies everything while the store is away."""
_BLIND: Final = "the store is away, so that grants cannot be checked; call again in a moment"
_AGENT: Final = Role.AGENT  # for the call path, see protocol/versions.py


class _CachedDecision(msgspec.Struct, frozen=True, gc=False):
    generation: int
    until: float
    since: float
    target: CallTarget
    decision: PolicyDecision


class DecisionCache:
    """Remembers the decisions about all agents, at most ``limit`` of them, marked as cached.

    A decision is forgotten when the grants or tokens of its agent change (their generation does),
    when a grant or token behind it expires, and after the time that AUTH_CACHE_TTL sets; 0 switches
    the cache off. Decisions that depend on what a call carries are never kept.
    """

    __slots__ = ("_entries", "_limit", "_ttl")

    def __init__(self, ttl: float = DEFAULT_TTL, limit: int = MAX_DECISIONS) -> None:
        self._ttl = ttl
        self._limit = limit
        self._entries: dict[tuple[str, str, str, str], _CachedDecision] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self, agent_id: str, generation: int, target: CallTarget, now: float
    ) -> PolicyDecision | None:
        """Return the decision about the same call by the same grants, if it still holds."""
        entry = self._entries.get((agent_id, target.kind, target.server_id, target.name))
        if (
            entry is None
            or entry.generation != generation
            or not entry.since <= now < entry.until
            or (entry.target is not target and entry.target != target)
        ):
            return None
        return entry.decision

    def keep(
        self,
        agent_id: str,
        generation: int,
        target: CallTarget,
        decision: PolicyDecision,
        now: float,
    ) -> None:
        """Remember a decision, unless it depends on what the call carried."""
        until = min(decision.valid_until, now + self._ttl)
        if until <= now:
            return
        if len(self._entries) >= self._limit:
            self._entries.clear()
        key = agent_id, target.kind, target.server_id, target.name
        cached = msgspec.structs.replace(decision, cached=True, valid_until=until)
        self._entries[key] = _CachedDecision(generation, until, now, target, cached)

    def clear(self) -> None:
        self._entries.clear()


class LivePolicy:
    """Who may use what, now. An AccessPolicy."""

    def __init__(
        self,
        server_ids: Mapping[str, str],
        cache_ttl: float = DEFAULT_TTL,
        conditions: Mapping[str, GrantCondition] = {},
    ) -> None:
        """``server_ids`` leads from a server's key in the catalog to its id; it may change.

        So may ``conditions``: those that can be used, by their source.
        """
        self._server_ids = server_ids
        self._conditions = conditions
        self.conditional: set[str] = set()
        """The agents that have grants with conditions."""
        self._cache = DecisionCache(cache_ttl)
        self._sets: dict[str, GrantSet] = {}
        self._tokens: dict[str, dict[str, tuple[Token, ...]]] = {}
        self._in_force: dict[str, GrantsInForce] = {}
        self._extra: dict[str, dict[str, tuple[Grant, ...]]] = {}
        """The grantees of agents, and the grants that each has beside its agent's."""
        self._grantees: dict[str, str] = {}
        """The agent of each grantee."""
        self._generations = itertools.count(1)
        self._nothing = GrantsInForce(GrantSet(""), 0.0)
        self.version = 0
        """Another number after each change of any agent: what was decided before may be void."""
        self._next_expiry = _NEVER
        """No grant expires before; it may be too early."""
        self.is_blind = False
        """Whether the store has been away for so long that a revocation may have been missed:
        nothing is allowed by grants then."""

    # -- changing

    def put(
        self,
        agent_id: str,
        grants: Iterable[Grant],
        tokens: Iterable[Token],
        now: float,
        agent_type: str = "",
    ) -> None:
        """Take the grants and tokens of an agent in place of what it had."""
        self.version += 1
        by_grant: dict[str, list[Token]] = {}
        for token in tokens:
            by_grant.setdefault(token.grant_id, []).append(token)
        self._tokens[agent_id] = {grant_id: tuple(some) for grant_id, some in by_grant.items()}
        self._compose(agent_id, agent_id, grants, now, agent_type)
        self._compose_grantees(agent_id, now, self.grantees_of(agent_id))

    def remove(self, agent_id: str, now: float = 0.0) -> None:
        """Forget an agent; it may use nothing then, but what its grantees have beside."""
        self.version += 1
        self.conditional.discard(agent_id)
        for table in (self._sets, self._tokens, self._in_force):
            table.pop(agent_id, None)
        self._compose_grantees(agent_id, now, self.grantees_of(agent_id))

    def put_extra(self, grantee: str, agent_id: str, grants: Iterable[Grant], now: float) -> None:
        """Let a grantee have these grants beside all that its agent has.

        A grantee is an agent with one access token, or several that give the same.
        """
        self.version += grantee in self._grantees
        self._grantees[grantee] = agent_id
        self._extra.setdefault(agent_id, {})[grantee] = tuple(grants)
        self._compose_grantees(agent_id, now, [grantee])

    def remove_extra(self, grantee: str) -> None:
        """Forget a grantee."""
        self.version += 1
        agent_id = self._grantees.pop(grantee, "")
        self._extra.get(agent_id, {}).pop(grantee, None)
        if not self._extra.get(agent_id):
            self._extra.pop(agent_id, None)
        self.conditional.discard(grantee)
        self._sets.pop(grantee, None)
        self._in_force.pop(grantee, None)

    def grantees_of(self, agent_id: str) -> list[str]:
        """Return the grantees of an agent."""
        return list(self._extra.get(agent_id, ()))

    def _compose(
        self, key: str, agent_id: str, grants: Iterable[Grant], now: float, agent_type: str
    ) -> None:
        made = self.make_set(agent_id, grants, next(self._generations), agent_type)
        self._sets[key] = made
        (self.conditional.add if made.conditions else self.conditional.discard)(key)
        in_force = GrantsInForce(made, now)
        self._in_force[key] = in_force
        self._next_expiry = min(self._next_expiry, in_force.until)

    def make_set(
        self,
        agent_id: str,
        grants: Iterable[Grant],
        generation: int = 0,
        agent_type: str | None = None,
    ) -> GrantSet:
        """Make the set of an agent that has these grants, which are not in force by that."""
        kind = self.of(agent_id).agent_type if agent_type is None else agent_type
        return GrantSet(agent_id, grants, generation, self._conditions, kind, self._server_ids)

    def _compose_grantees(self, agent_id: str, now: float, grantees: Iterable[str]) -> None:
        for grantee in grantees:
            own = self.of(agent_id)
            grants = (*own.grants, *self._extra[agent_id][grantee])
            self._compose(grantee, agent_id, grants, now, own.agent_type)

    def expire(self, now: float) -> list[str]:
        """Let go of grants that have expired; return the agents that see something else now."""
        changed = self.find_expiring(now)
        self.version += bool(changed)
        for agent_id in changed:
            self._in_force[agent_id] = GrantsInForce(self._sets[agent_id], now)
        if now >= self._next_expiry:
            self._next_expiry = min((one.until for one in self._in_force.values()), default=_NEVER)
        return changed

    def set_blind(self, is_blind: bool) -> None:
        """Allow nothing by grants, or what they allow again."""
        if is_blind is not self.is_blind:
            self.version += 1
            self.is_blind = is_blind

    def find_expiring(self, now: float) -> list[str]:
        """Return the agents of which ``expire`` would let go of a grant."""
        if now < self._next_expiry:
            return []
        return [agent for agent, in_force in self._in_force.items() if in_force.until <= now]

    @property
    def next_expiry(self) -> float | None:
        """When ``expire`` has something to do next, or a time before that."""
        return None if self._next_expiry == _NEVER else self._next_expiry

    @property
    def agents(self) -> list[str]:
        """The ids of all agents that have grants."""
        return [agent_id for agent_id in self._sets if agent_id not in self._grantees]

    # -- asking

    def of(self, agent_id: str) -> GrantSet:
        """Return the grants of an agent; of one that is not known, too."""
        found = self._sets.get(agent_id)
        return found if found is not None else GrantSet(agent_id)

    def tokens_of(self, agent_id: str) -> Tokens:
        """Return the tokens of an agent's grants, by the ids of these."""
        return self._tokens.get(agent_id, {})

    def grants(self, principal: Principal) -> Grants | None:
        """Return what a principal is shown; None is everything. Only agents are shown less."""
        if principal.role is not _AGENT:
            return None
        if self.is_blind:
            return self._nothing
        found = self._in_force.get(principal.grantee or principal.id, self._nothing)
        return None if found.has_everything else found

    def decide(
        self,
        principal: Principal,
        named: str | None,
        target: CallTarget,
        now: float,
        *,
        presented: PresentedToken | None = None,
        has_idempotency_key: bool = False,
        call: CallReader | None = None,
    ) -> PolicyDecision:
        """Decide about a call, or find what was decided about the same call before.

        ``call`` is what conditions read. Raises ArgumentsError where one reads arguments that can
        be read in more than one way.
        """
        grantee = principal.grantee or principal.id
        if named is not None or principal.role is not _AGENT:
            acting = decide_by_role(principal, named)
            if isinstance(acting, PolicyDecision):
                return acting
            if acting.id != principal.id:
                grantee = acting.id
        grants = self.of(grantee)
        if self.is_blind:
            return PolicyDecision(False, STORE, _BLIND, grants.agent_id)
        found = self._cache.get(grantee, grants.generation, target, now)
        if found is None:
            found = decide_by_grants(
                grants,
                target,
                now,
                tokens=self.tokens_of(grants.agent_id),
                presented=presented,
                has_idempotency_key=has_idempotency_key,
                call=call,
            )
            self._cache.keep(grantee, grants.generation, target, found, now)
        return found

    def decide_by_role(self, principal: Principal, named: str | None) -> PolicyDecision:
        """Decide about something of which nothing is known: only who may use all may use it."""
        acting = decide_by_role(principal, named)
        return acting if isinstance(acting, PolicyDecision) else deny_by_default(acting.id)

    def explain(
        self,
        agent_id: str,
        target: CallTarget,
        now: float,
        *,
        server_name: str = "",
        grantee: str | None = None,
        call: CallReader | None = None,
    ) -> Explanation:
        """Explain what would be decided if the agent made this call now. Raises ArgumentsError.

        Without a ``grantee``, with that access token of it that gives most.
        """
        found = [agent_id, *self.grantees_of(agent_id)] if grantee is None else [grantee]
        agents = [Principal(agent_id, Role.AGENT, grantee=one) for one in found]
        decisions = [self.decide(agent, None, target, now, call=call) for agent in agents]
        return explain(
            next((one for one in decisions if one.allowed), decisions[0]),
            self.of(agent_id),
            target,
            now,
            agent_id=agent_id,
            server_name=server_name,
            call=call,
        )
