"""ListenerHost: what a listener needs of the rest of Junction. The composition root provides it."""

from __future__ import annotations

from typing import Protocol

from mcp_junction.calls.call import Call, Snapshot
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.scope import Scopes
from mcp_junction.config.settings import Settings
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.listener.capabilities import ServerSummary
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol.names import Spelling
from mcp_junction.sessions.clients import ClientRelay
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient


class ListenerHost(Protocol):
    settings: Settings
    parked_calls: ParkedCalls
    """Where calls wait for their clients."""
    quotas: Quotas
    """The usage of every principal."""
    scopes: Scopes
    """What each client may see."""
    summary: ServerSummary
    """The capabilities and instructions of all servers together."""
    relay: ClientRelay
    """Passes on to servers what clients say to all of them."""

    @property
    def snapshot(self) -> Snapshot:
        """The current snapshot."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether there was a moment at which every server was up or had failed."""
        ...

    async def wait_until_settled(self) -> None:
        """Wait until it is settled, for a limited time."""
        ...

    async def wait_for_offer(self, call: Call) -> None:
        """Wait until a server offers the target of ``call``, or all servers have started."""
        ...

    def spelling(self, endpoint: Endpoint, principal: Principal) -> Spelling:
        """The spelling of names at an endpoint, for an unknown client."""
        ...

    def note_client(self, client: Session | StatelessClient) -> None:
        """Note the name and capabilities of a new client."""
        ...
