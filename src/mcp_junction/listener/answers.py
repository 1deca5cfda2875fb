"""OwnAnswers: what Junction answers itself to clients of either era: pages of lists, instructions.

How an answer is wrapped is the dispatchers' business; so is which method of their era leads here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Raw

from mcp_junction.catalog.items import ListKind
from mcp_junction.catalog.scope import Scope
from mcp_junction.errors import CursorError, FrameError
from mcp_junction.listener.host import ListenerHost
from mcp_junction.protocol.cycles import is_from_junction, reachable_member
from mcp_junction.protocol.merged_list import cursor_in
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import INVALID_PARAMS


class ListingClient(Protocol):
    """A client of either era, as far as lists depend on it."""

    spelling: Spelling

    @property
    def scope(self) -> Scope: ...


class OwnAnswers:
    """Makes the parts of answers that are the same in both eras."""

    def __init__(self, backend: ListenerHost) -> None:
        self._backend = backend

    def cursor(self, params: Mapping[str, Raw]) -> str | None:
        """Where a page of a list begins. Raises FrameError."""
        try:
            return cursor_in(params)
        except CursorError as error:
            raise FrameError(INVALID_PARAMS, str(error)) from None

    def page(
        self, client: ListingClient, kind: ListKind, cursor: str | None, meta: Raw | None
    ) -> tuple[bytes, bytes]:
        """A page of a list, and what another Junction is told with it, as a member of ``_meta``.

        Raises FrameError when the cursor leads nowhere.
        """
        try:
            page = self._backend.snapshot.catalog.page(client.spelling, kind, client.scope, cursor)
        except CursorError as error:
            raise FrameError(INVALID_PARAMS, str(error)) from None
        if not is_from_junction(meta):
            return page, b""
        return page, reachable_member(self._backend.summary.reachable_junctions(client.scope))

    def with_instructions(self, client: ListingClient, greeting: dict[str, Any]) -> dict[str, Any]:
        """A greeting with the instructions of the servers that a client sees, if there are any."""
        instructions = self._backend.summary.instructions(client.scope)
        return {**greeting, "instructions": instructions} if instructions else greeting
