"""ReadCooldowns: how long the lists of a server are not read again that it says have changed.

After a read it is four times as long as that took, so that reading leaves time for others; and
twice as long as before for a server that announced a change meanwhile, since each may be recorded.
The lists of one that announces a change now and then are read at once.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from mcp_junction.upstream.upstream import Upstream

_SHARE: Final = 4
_LONGEST: Final = 5.0
"""Seconds."""


class ReadCooldowns:
    """The cooldowns of all servers."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Upstream, tuple[float, float]] = WeakKeyDictionary()
        """When the last cooldown ends, and how long it is."""

    async def wait_until_over(self, server: Upstream) -> None:
        """Wait until the lists of a server may be read again."""
        until, _ = self._last.get(server, (0.0, 0.0))
        await server.clock.sleep(until - server.clock.now())

    def start(self, server: Upstream, read_since: float) -> None:
        """Start the cooldown of a server whose lists have just been read, since that moment."""
        now = server.clock.now()
        until, before = self._last.get(server, (0.0, 0.0))
        seconds = _SHARE * (now - read_since)
        if read_since - until < before:  # it was read as soon as that was over, or nearly
            seconds = max(seconds, 2 * before)
        seconds = min(_LONGEST, seconds)
        self._last[server] = now + seconds, seconds
