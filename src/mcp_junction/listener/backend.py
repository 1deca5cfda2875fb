"""Backend: what a listener needs of the rest of Junction. The composition root provides it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw

from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.config.settings import Settings
from mcp_junction.protocol.names import Spelling
from mcp_junction.sessions.session import Session


class Backend(Protocol):
    settings: Settings

    @property
    def snapshot(self) -> Snapshot:
        """The world as it is now."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether every server is up or has failed."""
        ...

    async def settled(self) -> None:
        """Wait until then, but not for ever."""
        ...

    async def offered(self, name: str, spelling: Spelling) -> None:
        """Wait until a server offers ``name``, or until none of them can any more."""
        ...

    def introduced(self, session: Session) -> None:
        """A client has said who it is and what it can do."""
        ...

    def to_servers(self, capability: str | None, method: str, params: Raw | bytes) -> None:
        """Pass a notification of the client's on to the servers it concerns."""
        ...

    async def set_log_level(self, params: bytes) -> None:
        """Pass the client's choice on to every server that logs."""
        ...
