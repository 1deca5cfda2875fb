"""CallLimits: limits the rate of calls of an agent, a server, a tool and a grant.

Rates of the settings are token buckets, in memory. Limits of grants are windows; those of a minute
or more are stored every few seconds and at the end, so that a restart does not hand out what was
used up. Each process counts for itself. A call counts once, whatever its attempts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from mcp_junction.errors import StoreError
from mcp_junction.policy.grants import Grant
from mcp_junction.resilience.buckets import (
    Buckets,
    CallWindow,
    Limited,
    TokenBucket,
    take_from_each,
)
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.resilience import LimitTable, WindowRecord

log = logging.getLogger("mcp_junction.governance")

STORED_EVERY: Final = 5.0
_MAX_TOGETHER: Final = 10_000
_RATES: Final = ("the agent", "the server", "the tool")


class CallLimits:
    """Counts calls against all limits that they have."""

    def __init__(
        self,
        agents: Buckets | None = None,
        servers: Buckets | None = None,
        tools: Buckets | None = None,
        table: LimitTable | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._agents = agents
        self._servers = servers
        self._tools = tools
        self._table = table
        self._now = now
        self.has_rates = not (agents is None and servers is None and tools is None)
        self._together: dict[tuple[str, str, str], tuple[TokenBucket, ...]] = {}
        """The buckets of the calls of an agent, a server and a tool, found before."""
        self._windows: dict[str, CallWindow] = {}
        """The windows of grants, by the ids of these."""
        self._changed: set[str] = set()
        """The grants whose windows are to be stored."""
        self._stored: dict[str, WindowRecord] = {}
        """What was stored of windows that nobody has asked for yet."""

    # -- counting

    def take(
        self, agent_id: str, server_id: str, tool: str, grants: Sequence[Grant]
    ) -> Limited | Grant | None:
        """Count a call, or say which limit it meets; return the grant that it passes by.

        Of several grants the first passes whose limit has room. None is a call without a grant.
        """
        now = self._now()
        buckets = self._together.get((agent_id, server_id, tool))
        if buckets is None:
            buckets = self._collect(agent_id, server_id, tool, now)
        chosen = grants[0] if grants else None
        if chosen is not None and chosen.limits is not None:  # those without one come first
            found = self._choose(grants, now)
            if isinstance(found, Limited):
                return found
            chosen = found
        if not take_from_each(buckets, now):
            return self._find_longest(buckets, now)
        if chosen is not None and chosen.limits is not None:
            self._window(chosen).take(now)
            self._changed.add(chosen.id)
        return chosen

    def _collect(
        self, agent_id: str, server_id: str, tool: str, now: float
    ) -> tuple[TokenBucket, ...]:
        """Collect the buckets of a call, and keep them together for the next one like it.

        None are kept together any more once buckets were dropped: the same agent, say, may get
        another one then, which all of its calls have to share.
        """
        keys = agent_id, server_id, (server_id, tool)
        kinds = self._agents, self._servers, self._tools
        before = [kind.sweeps for kind in kinds if kind is not None]
        found = tuple(
            kind.of(key, now) for kind, key in zip(kinds, keys, strict=True) if kind is not None
        )
        has_swept = before != [kind.sweeps for kind in kinds if kind is not None]
        if has_swept or len(self._together) >= _MAX_TOGETHER:
            self._together.clear()
        self._together[agent_id, server_id, tool] = found
        return found

    def _find_longest(self, buckets: Sequence[TokenBucket], now: float) -> Limited:
        """Find the rate that a call has to wait longest for."""
        rates = zip(_RATES, (self._agents, self._servers, self._tools), strict=True)
        names = [name for name, kind in rates if kind is not None]
        waits = [Limited(name, one.wait(now)) for name, one in zip(names, buckets, strict=True)]
        return max(waits, key=attrgetter("wait"))

    def _choose(self, grants: Sequence[Grant], now: float) -> Limited | Grant:
        """Choose the first grant that has room, or say which will have it first."""
        waits: list[Limited] = []
        for grant in grants:
            wait = self._window(grant).wait(now) if grant.limits is not None else 0.0
            if wait <= 0.0:
                return grant
            waits.append(Limited(f"grant {grant.id}", wait))
        return min(waits, key=attrgetter("wait"))

    def _window(self, grant: Grant) -> CallWindow:
        limits = grant.limits
        assert limits is not None
        window = self._windows.get(grant.id)
        if window is None or window.calls != limits.calls or window.per != limits.per:
            before = window or self._stored.pop(grant.id, None)
            state = None if before is None else before.state
            window = self._windows[grant.id] = CallWindow(limits.calls, limits.per, state)
        return window

    def forget(self, grant_ids: Iterable[str]) -> None:
        """Drop the windows of grants that are gone."""
        for grant_id in grant_ids:
            self._windows.pop(grant_id, None)
            self._stored.pop(grant_id, None)
            self._changed.discard(grant_id)

    # -- surviving a restart

    async def load(self) -> None:
        """Read what was used up before this process began."""
        if self._table is not None:
            self._stored = {one.grant_id: one for one in await self._table.all(self._now())}

    async def save(self) -> None:
        """Store the windows that have changed, and are long enough to be kept."""
        if self._table is None or not self._changed:
            return
        changed, self._changed = self._changed, set()
        now = self._now()
        windows = [(one, self._windows[one]) for one in sorted(changed) if one in self._windows]
        records = [
            WindowRecord.of(grant_id, window.state, now)
            for grant_id, window in windows
            if window.is_kept
        ]
        try:
            if records:
                await self._table.store(records, now)
        except (StoreError, asyncio.CancelledError):
            self._changed |= changed  # they are stored the next time
            raise

    async def run(self, clock: Clock) -> None:
        """Store what has changed, every few seconds and at the end."""
        try:
            while True:
                await clock.sleep(STORED_EVERY)
                await self._save_or_warn()
        finally:
            await self._save_or_warn()

    async def _save_or_warn(self) -> None:
        try:
            await self.save()
        except StoreError as error:
            log.warning("what is used up of limits cannot be stored now: %s", error)
