"""OwnAnswers: what Junction answers itself to clients of either era: greetings and lists.

Which method of an era leads here is the dispatchers' business.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from msgspec import Raw

from mcp_junction.catalog.items import ListKind
from mcp_junction.catalog.scope import Scope
from mcp_junction.errors import CursorError
from mcp_junction.listener.capabilities import CAPABILITIES
from mcp_junction.listener.host import ListenerHost
from mcp_junction.listener.replies import Reply, refusal
from mcp_junction.protocol import cycles, encode
from mcp_junction.protocol.cycles import ID_KEY
from mcp_junction.protocol.merged_list import cursor_in
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import (
    HANDSHAKE,
    INVALID_PARAMS,
    SERVER_INFO_KEY,
    STATELESS_VERSIONS,
    Era,
)
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient

ReplyOrLater = Reply | Coroutine[Any, Any, Reply]


class ListingClient(Protocol):
    """A client of either era, as far as lists depend on it."""

    era: Era
    spelling: Spelling

    @property
    def scope(self) -> Scope: ...

    @property
    def has_listed(self) -> bool:
        """Whether it has seen a list before: then it is not made to wait for another."""
        ...

    def note_listed(self, changed: str, generation: int) -> None:
        """Note that it was shown a list; ``changed`` is how it is told of a change of it."""
        ...


class OwnAnswers:
    """Makes the answers of Junction's own."""

    def __init__(self, backend: ListenerHost) -> None:
        self._backend = backend
        self._info = {"name": backend.settings.name, "version": backend.settings.version}
        self._server_info = encode.dumps(self._info)

    # -- greetings

    def initialize(self, session: Session, frame_id: bytes) -> ReplyOrLater:
        """Greet a handshake client, with the instructions of servers that are starting."""
        summary = self._backend.summary
        if summary.has_all_instructions:
            return self._initialized(session, frame_id)
        return _after(summary.wait_for_instructions, self._initialized, session, frame_id)

    def _initialized(self, session: Session, frame_id: bytes) -> Reply:
        answer: dict[str, Any] = {
            "protocolVersion": session.protocol_version,
            "capabilities": CAPABILITIES,
            "serverInfo": self._info,
            "_meta": cycles.id_meta(self._backend.summary.junction_id),
        }
        payload = encode.dumps(self._with_instructions(session, answer))
        return Reply(encode.result(frame_id, payload))

    def discover(self, client: StatelessClient, frame_id: bytes) -> ReplyOrLater:
        """Greet a stateless client, once the servers are up."""
        if self._backend.is_settled:
            return self._discovered(client, frame_id)
        return _after(self._backend.wait_until_settled, self._discovered, client, frame_id)

    def _discovered(self, client: StatelessClient, frame_id: bytes) -> Reply:
        found: dict[str, Any] = {
            "supportedVersions": STATELESS_VERSIONS,
            "capabilities": self._backend.summary.capabilities(client.scope),
        }
        payload = encode.dumps(self._with_instructions(client, found))
        ours = b'"%b":%b' % (ID_KEY.encode(), encode.dumps(self._backend.summary.junction_id))
        return Reply(encode.compact_result_with(frame_id, payload, self._stateless_tail(ours)))

    def _with_instructions(self, client: ListingClient, greeting: dict[str, Any]) -> dict[str, Any]:
        """A greeting with the instructions of the servers that a client sees, if there are any."""
        instructions = self._backend.summary.instructions(client.scope)
        return {**greeting, "instructions": instructions} if instructions else greeting

    # -- lists

    def list(
        self, client: ListingClient, frame_id: bytes, kind: ListKind, params: dict[str, Raw]
    ) -> ReplyOrLater:
        """Answer with a page of a list; the first one waits until the servers are up."""
        try:
            cursor, meta = cursor_in(params), params.get("_meta")
        except CursorError as error:
            return refusal(frame_id, INVALID_PARAMS, str(error))
        given = client, frame_id, kind, cursor, meta
        if self._backend.is_settled or client.has_listed:
            return self._page(*given)
        return _after(self._backend.wait_until_settled, self._page, *given)

    def _page(
        self,
        client: ListingClient,
        frame_id: bytes,
        kind: ListKind,
        cursor: str | None,
        meta: Raw | None,
    ) -> Reply:
        backend, scope = self._backend, client.scope
        snapshot = backend.snapshot
        try:
            page = snapshot.catalog.page(client.spelling, kind, scope, cursor)
        except CursorError as error:
            return refusal(frame_id, INVALID_PARAMS, str(error))
        if cursor is None:
            client.note_listed(kind.changed, snapshot.generation)
        ours = b""  # what another Junction is told with it, as a member of ``_meta``
        if cycles.is_from_junction(meta):
            ours = cycles.reachable_member(backend.summary.reachable_junctions(scope))
        if client.era is not HANDSHAKE:
            return Reply(encode.compact_result_with(frame_id, page, self._stateless_tail(ours)))
        if ours:
            return Reply(encode.compact_result_with(frame_id, page, b',"_meta":{%b}}' % ours))
        return Reply(encode.compact_result(frame_id, page))

    def _stateless_tail(self, ours: bytes) -> bytes:
        """Make the end of a stateless result of ours: its type, its caching and our server info.

        Others may be given the same result only where no name, grant or exposure differs by client.
        ``ours`` is a further member of its ``_meta``, for other Junctions.
        """
        settings = self._backend.settings
        differs = settings.separator is None or self._backend.scopes.differ
        scope = b"private" if differs else b"public"
        return (b',"resultType":"complete","ttlMs":%d,"cacheScope":"%b","_meta":{"%b":%b%b}}') % (
            settings.list_ttl_ms,
            scope,
            SERVER_INFO_KEY.encode(),
            self._server_info,
            b"," + ours if ours else b"",
        )


async def _after(
    wait: Callable[[], Coroutine[Any, Any, None]], answer: Callable[..., Reply], *given: Any
) -> Reply:
    """Wait for something, then answer."""
    await wait()
    return answer(*given)
