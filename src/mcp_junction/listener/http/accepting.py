"""Taking no more connections, without losing sight of one that was accepted a moment ago.

Between the accept of a connection and its ``connection_made`` the loop turns once or twice. asyncio
drops one whose server is closed in between, without closing it; on uvloop it comes to be known
after everybody was told to leave, and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

_TURNS = 4
"""What the loop needs to make a connection of what it accepted, and to begin what serves it."""


async def stop_accepting(servers: Iterable[asyncio.Server]) -> None:
    """Close servers; then every connection they accepted is known to its protocol."""
    servers = list(servers)
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            with suppress(NotImplementedError):  # Windows accepts in another way
                loop.remove_reader(listening.fileno())
    await _turns()
    for server in servers:
        server.close()
    await _turns()


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
