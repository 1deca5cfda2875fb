"""ExtraLinks: further links to one server: for one session, in the other era, or pooled.

Each is an Upstream like any other, with its own life; it is opened when first needed and ends when
it is no longer used.
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
from mcp_junction.upstream.hello import EVERYTHING_RELAYED, Hello

if TYPE_CHECKING:
    from mcp_junction.upstream.server import Upstream

log = logging.getLogger("mcp_junction.upstream")

MAX_POOLED: Final = 64
IDLE_AFTER: Final = 300.0
_SWEEP = 60.0

Make = Callable[..., "Upstream"]


class ExtraLinks:
    """The further links of one server."""

    def __init__(self, of: Upstream, make: Make) -> None:
        self._of = of
        self._make = make
        self._by_session: dict[object, Upstream] = {}
        self._by_era: dict[Era, Upstream] = {}
        self._pooled: OrderedDict[Hashable, tuple[Upstream, float]] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks = TaskScope(f"twins of {of.key}", of.terms.supervision)

    def __iter__(self) -> Iterator[Upstream]:
        """Those for sessions, and those for eras with theirs; not the pooled."""
        yield from list(self._by_session.values())
        for twin in list(self._by_era.values()):
            yield twin
            yield from twin.extra_links

    @property
    def every(self) -> list[Upstream]:
        """All of them, the pooled too; not theirs."""
        pooled = [twin for twin, _ in self._pooled.values()]
        return [*self._by_session.values(), *self._by_era.values(), *pooled]

    def _start(self, hello: Hello, **how: Any) -> Upstream:
        told: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        told.set_result(hello)
        twin = self._make(hello=told, primary=self._of, **how)
        live = partial(self._live, twin, hello.prefers)
        self._tasks.supervise("server links", live, is_vital=False)
        return twin

    async def _live(self, twin: Upstream, era: Era) -> None:
        """The life of a twin. If it is refused the era of our own link, another server is there."""
        await twin.run()
        if self._by_era.get(era) is twin:
            self._judge(era, twin)  # now: nobody may be waiting, and a later life is another matter
        link = self._of.link
        if isinstance(twin.error, EraError) and link is not None and link.era is era:
            link.mark_lost("it speaks another version of the protocol than it did")

    async def close(self, grace: float) -> None:
        """End them all; returns when they are gone."""
        for twin in self.every:
            twin.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._tasks.settle(grace)
        await self._tasks.close()
        self._by_session.clear()
        self._by_era.clear()
        self._pooled.clear()

    # -- for one session

    def for_session(self, session: object, hello: Callable[[], Hello]) -> Upstream:
        twin = self._by_session.get(session)
        if twin is None:
            said = msgspec.structs.replace(hello(), prefers=Era.HANDSHAKE)
            twin = self._by_session[session] = self._start(said, session=session)
        return twin

    def end_session(self, session: object) -> None:
        twin = self._by_session.pop(session, None)
        if twin is not None:
            twin.stop()
        for other in self._by_era.values():
            other.end_session(session)

    # -- in the other era

    def speaks(self, era: Era) -> bool | None:
        """Whether the server speaks an era other than its link's; None when nobody has asked."""
        twin = self._by_era.get(era)
        return True if twin is not None and twin.link is not None else None

    async def for_era(self, era: Era) -> Upstream | None:
        """The twin in an era, once it is known whether there can be one."""
        twin = self._by_era.get(era)
        if twin is None:
            base = EVERYTHING_RELAYED if era is Era.HANDSHAKE else Hello()
            hello = msgspec.structs.replace(base, prefers=era, only=True)
            twin = self._by_era[era] = self._start(hello)
        if twin.link is None:
            await twin.settled.wait()
            self._judge(era, twin)
        return twin if twin.link is not None else None

    def _judge(self, era: Era, twin: Upstream) -> None:
        """A twin that could not be had: for good, or, when it is an outage, for now."""
        is_refused = isinstance(twin.error, EraError)
        if twin.link is None and (is_refused or not twin.terms.restart):
            self._of.refused_eras.add(era)
            if self._by_era.get(era) is twin:
                del self._by_era[era]
                twin.stop()
            log.debug("server %r is not called in the %s era: %s", twin.key, era, twin.error)

    # -- pooled

    def pooled(self, key: Hashable, hello: Hello) -> Upstream | None:
        found = self._pooled.get(key)
        now = self._of.clock.now()
        if found is not None and not isinstance(found[0].error, EraError):
            twin = found[0]
        elif len(self._pooled) >= MAX_POOLED and not self._make_room():
            return None
        else:
            said = msgspec.structs.replace(hello, prefers=Era.HANDSHAKE, only=True)
            twin = self._start(said, is_pooled=True)
        self._pooled[key] = (twin, now)
        self._pooled.move_to_end(key)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._tasks.supervise("idle links", self._sweep, is_vital=False)
        return twin

    def _make_room(self) -> bool:
        """End the idle one that was used least recently, if one is idle."""
        for key, (twin, _) in self._pooled.items():
            if not twin.is_busy:
                self._drop(key)
                return True
        return False

    def _drop(self, key: Hashable) -> None:
        self._pooled.pop(key)[0].stop()

    async def _sweep(self) -> None:
        while self._pooled:
            await self._of.clock.sleep(_SWEEP)
            now = self._of.clock.now()
            for key, (twin, used) in list(self._pooled.items()):
                if twin.is_busy:
                    self._pooled[key] = (twin, now)
                elif now - used >= IDLE_AFTER:
                    self._drop(key)
