"""ExtraLinks: further links to one server: for one session, in the other era, or pooled.

Each is an Upstream of its own, which is started when first needed and stopped when no longer used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcp_junction.errors import EraError
from mcp_junction.protocol.versions import Era
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.handshake import EVERYTHING_RELAYED, Hello

if TYPE_CHECKING:
    from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.upstream")

MAX_POOLED: Final = 64
IDLE_AFTER: Final = 300.0
_SWEEP = 60.0

Make = Callable[..., "Upstream"]


class ExtraLinks:
    """The extra links of one server."""

    def __init__(self, primary: Upstream, make: Make) -> None:
        self._primary = primary
        self._make = make
        self._by_session: dict[object, Upstream] = {}
        self._by_era: dict[Era, Upstream] = {}
        self._pooled: OrderedDict[Hashable, tuple[Upstream, float]] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks = TaskScope(f"extra links of {primary.key}", primary.policy.supervision)

    def __iter__(self) -> Iterator[Upstream]:
        """Those for sessions, and those for eras with their own extra links; not the pool."""
        yield from list(self._by_session.values())
        for extra in list(self._by_era.values()):
            yield extra
            yield from extra.extra_links

    @property
    def every(self) -> list[Upstream]:
        """All, with the pool; without their own extra links."""
        pooled = [extra for extra, _ in self._pooled.values()]
        return [*self._by_session.values(), *self._by_era.values(), *pooled]

    def _start(self, hello: Hello, **how: Any) -> Upstream:
        known: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        known.set_result(hello)
        tokens = self._primary.tokens
        if tokens is not None and hello.user is not None:
            tokens = tokens.for_principal(hello.user)
        extra = self._make(hello=known, primary=self._primary, tokens=tokens, **how)
        self._tasks.supervise(
            "server links", partial(self._run, extra, hello.prefers), is_vital=False
        )
        return extra

    async def _run(self, extra: Upstream, era: Era) -> None:
        """Run an extra link until it ends; if its era was refused, drop the primary link of it."""
        await extra.run()
        if self._by_era.get(era) is extra:
            self._drop_if_refused(era, extra)
        link = self._primary.link
        if isinstance(extra.error, EraError) and link is not None and link.era is era:
            # The primary link speaks that era: there must be another server now.
            link.mark_lost("it speaks another version of the protocol than it did")

    async def close(self, grace: float) -> None:
        """Stop them all; returns when they have ended."""
        for extra in self.every:
            extra.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._tasks.settle(grace)
        await self._tasks.close()
        self._by_session.clear()
        self._by_era.clear()
        self._pooled.clear()

    # -- for one session

    def for_session(self, session: object, hello: Callable[[], Hello]) -> Upstream:
        """The link of one session."""
        extra = self._by_session.get(session)
        if extra is None:
            wanted = msgspec.structs.replace(hello(), prefers=Era.HANDSHAKE)
            extra = self._by_session[session] = self._start(wanted, session=session)
        return extra

    def end_session(self, session: object) -> None:
        """Stop the link of a session that is over."""
        extra = self._by_session.pop(session, None)
        if extra is not None:
            extra.stop()
        for other in self._by_era.values():
            other.extra_links.end_session(session)

    # -- in the other era

    def speaks(self, era: Era) -> bool | None:
        """Whether the server speaks an era; None when that is unknown."""
        link = self._primary.link
        if link is not None and link.era is era:
            return True
        if era in self._primary.refused_eras:
            return False
        extra = self._by_era.get(era)
        return True if extra is not None and extra.link is not None else None

    async def for_era(self, era: Era) -> Upstream | None:
        """The extra link in an era, once it is known whether there can be one."""
        if era in self._primary.refused_eras:
            return None
        extra = self._by_era.get(era)
        if extra is None:
            base = EVERYTHING_RELAYED if era is Era.HANDSHAKE else Hello()
            hello = msgspec.structs.replace(base, prefers=era, only=True)
            extra = self._by_era[era] = self._start(hello)
        if extra.link is None:
            await extra.settled.wait()
            self._drop_if_refused(era, extra)
        return extra if extra.link is not None else None

    def _drop_if_refused(self, era: Era, extra: Upstream) -> None:
        """Drop an extra link that cannot be had; in an outage it is kept and tries again."""
        is_refused = isinstance(extra.error, EraError)
        if extra.link is None and (is_refused or not extra.policy.restart):
            self._primary.refused_eras.add(era)
            if self._by_era.get(era) is extra:
                del self._by_era[era]
                extra.stop()
            log.debug("server %r is not called in the %s era: %s", extra.key, era, extra.error)

    # -- pooled

    def pooled(self, key: Hashable, hello: Hello) -> Upstream | None:
        """The link in the handshake era for all who share a key; None when all are busy."""
        found = self._pooled.get(key)
        now = self._primary.clock.now()
        if found is not None and not isinstance(found[0].error, EraError):
            extra = found[0]
        elif len(self._pooled) >= MAX_POOLED and not self._make_room():
            return None
        else:
            wanted = msgspec.structs.replace(hello, prefers=Era.HANDSHAKE, only=True)
            extra = self._start(wanted, is_pooled=True)
        self._pooled[key] = (extra, now)
        self._pooled.move_to_end(key)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._tasks.supervise("idle links", self._sweep, is_vital=False)
        return extra

    def _make_room(self) -> bool:
        """Stop the least recently used idle link of the pool; False when none is idle."""
        for key, (extra, _) in self._pooled.items():
            if not extra.is_busy:
                self._drop(key)
                return True
        return False

    def _drop(self, key: Hashable) -> None:
        link, _ = self._pooled.pop(key)
        link.stop()

    async def _sweep(self) -> None:
        """Stop links of the pool that were idle for long."""
        while self._pooled:
            await self._primary.clock.sleep(_SWEEP)
            now = self._primary.clock.now()
            for key, (extra, used) in list(self._pooled.items()):
                if extra.is_busy:
                    self._pooled[key] = (extra, now)
                elif now - used >= IDLE_AFTER:
                    self._drop(key)
