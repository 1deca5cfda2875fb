"""Observer: who is told about a server's life, and answers for its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mcp_junction.protocol.frames import Frame
from mcp_junction.upstream.outcome import Outcome

if TYPE_CHECKING:
    from mcp_junction.upstream.server import Upstream


class Observer(Protocol):
    """Who is told about a server's life."""

    def changed(self, upstream: Upstream) -> None:
        """Its state is another one."""
        ...

    async def connected(self, upstream: Upstream) -> None:
        """It has greeted us: find out what it offers. May raise ServerError."""
        ...

    def heard(self, upstream: Upstream, frame: Frame) -> None:
        """A notification that belongs to no call."""
        ...

    async def asked(self, upstream: Upstream, frame: Frame) -> Outcome:
        """A request of the server's that belongs to no one call."""
        ...

    def unattributed(self, upstream: Upstream, method: str) -> None:
        """A log message was dropped, or a request refused: whose it is cannot be known."""
        ...

    def renewed(self, upstream: Upstream) -> None:
        """It had forgotten us, and knows us again: nothing it was told before holds."""
        ...
