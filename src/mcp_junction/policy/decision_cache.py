"""DecisionCache: remembers decisions about calls for a while, and marks them as cached.

A decision is forgotten when the grants or tokens of its agent change (their generation does), when
a grant or token behind it expires, and after the time that AUTH_CACHE_TTL sets; 0 switches the
cache off. Decisions that depend on what a call carries are never kept.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mcp_junction.policy.decision import CallTarget, PolicyDecision

DEFAULT_TTL: Final = 5 * 60.0
MAX_DECISIONS: Final = 10_000


class _Entry(msgspec.Struct, frozen=True, gc=False):
    generation: int
    until: float
    since: float
    target: CallTarget
    decision: PolicyDecision


class DecisionCache:
    """The decisions of all agents, at most ``limit`` of them."""

    __slots__ = ("_entries", "_limit", "_ttl")

    def __init__(self, ttl: float = DEFAULT_TTL, limit: int = MAX_DECISIONS) -> None:
        self._ttl = ttl
        self._limit = limit
        self._entries: dict[tuple[str, str, str, str], _Entry] = {}

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
        self._entries[key] = _Entry(generation, until, now, target, cached)

    def clear(self) -> None:
        self._entries.clear()
