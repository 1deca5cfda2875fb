"""Rests: how long servers are left alone that announce changes of their lists without end.

After a read a server rests four times as long as that took, so that reading its lists leaves time
for others; and twice as long as before if it announced a change during its rest, since each may be
recorded. One that announces a change now and then is read at once.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from mcp_junction.upstream.upstream import Upstream

_SHARE: Final = 4
LONGEST_REST: Final = 5.0
"""Seconds."""


class Rests:
    """The rests of all servers."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Upstream, tuple[float, float]] = WeakKeyDictionary()
        """When the last rest ends, and how long it is."""

    async def wait(self, server: Upstream) -> None:
        """Wait until a server has rested."""
        until, _ = self._last.get(server, (0.0, 0.0))
        await server.clock.sleep(until - server.clock.now())

    def begin(self, server: Upstream, began: float) -> None:
        """Have a server rest, of which a read has ended that began then."""
        now = server.clock.now()
        until, before = self._last.get(server, (0.0, 0.0))
        seconds = _SHARE * (now - began)
        if began - until < before:  # it was read as soon as it had rested, or nearly
            seconds = max(seconds, 2 * before)
        seconds = min(LONGEST_REST, seconds)
        self._last[server] = now + seconds, seconds
