"""Backend: what a listener needs of the rest of Junction. The composition root provides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.scope import Scope, Scopes
from mcp_junction.config.settings import Settings
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol.names import Spelling
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, StatelessClient


class Backend(Protocol):
    settings: Settings
    parked_calls: ParkedCalls
    """Where calls wait for their clients."""
    quotas: Quotas
    """The usage of every principal."""
    scopes: Scopes
    """What each client may see."""

    @property
    def snapshot(self) -> Snapshot:
        """The world as it is now."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether every server is up or has failed, or was once: it stays so."""
        ...

    async def wait_until_settled(self) -> None:
        """Wait until then, but not for ever."""
        ...

    async def wait_for_offer(self, call: Call) -> None:
        """Wait until a server offers what ``call`` is for, or until none of them can any more."""
        ...

    @property
    def junction_id(self) -> str:
        """The id of this Junction."""
        ...

    def reachable_junctions(self, scope: Scope) -> set[str]:
        """The ids of this Junction and of all Junctions behind the servers in a Scope."""
        ...

    def spelling(self, endpoint: Endpoint) -> Spelling:
        """How names are written at an endpoint for a client nothing is known about."""
        ...

    def capabilities(self, scope: Scope) -> dict[str, Any]:
        """What a stateless client can have in a Scope."""
        ...

    def instructions(self, scope: Scope) -> str:
        """The instructions of the servers in a Scope, as far as they are known by now."""
        ...

    @property
    def has_all_instructions(self) -> bool:
        """Whether every server has sent its instructions, or is not waited for."""
        ...

    async def wait_for_instructions(self) -> None:
        """Wait for the instructions of starting servers, at most ``instructions_wait_ms``."""
        ...

    async def subscribe(self, listen: Listen, uris: Sequence[str]) -> list[str]:
        """Have updates of these resources come to ``listen``; those that will."""
        ...

    def add_listen(self, listen: Listen) -> None:
        """It has been told that it is heard: changed lists may be announced to it."""
        ...

    def remove_listen(self, listen: Listen) -> None:
        """It is over."""
        ...

    def note_client(self, client: Session | StatelessClient) -> None:
        """A client has said who it is and what it can do."""
        ...

    def notify_servers(self, session: Session, method: str, params: Raw | bytes) -> None:
        """Pass a notification of the client's on to every server."""
        ...

    async def update_log_levels(self) -> None:
        """A client has chosen a level: let the servers know what the most curious client wants."""
        ...
