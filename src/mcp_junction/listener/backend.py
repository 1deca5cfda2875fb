"""Backend: what a listener needs of the rest of Junction. The composition root provides it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.config.settings import Settings
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

    async def offered(self, call: Call) -> None:
        """Wait until a server offers what ``call`` is for, or until none of them can any more."""
        ...

    def introduced(self, session: Session) -> None:
        """A client has said who it is and what it can do."""
        ...

    def to_servers(self, session: Session, method: str, params: Raw | bytes) -> None:
        """Pass a notification of the client's on to every server."""
        ...

    async def log_level_set(self) -> None:
        """A client has chosen a level: let the servers know what the most curious client wants."""
        ...
