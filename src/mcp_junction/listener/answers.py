"""OwnAnswers: what Junction answers itself to clients of either era: greetings and lists.

Which method of an era leads here is the dispatchers' business. ServerSummary joins what servers say
in their greetings. ListenerHost is what a listener needs of the rest of Junction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Raw

from mcp_junction.calls.call import Call, Snapshot
from mcp_junction.calls.startup import ServerStartup
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import ListKind
from mcp_junction.catalog.live_catalog import LiveCatalog
from mcp_junction.catalog.scope import Scope, Scopes
from mcp_junction.config.settings import Settings
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.errors import CursorError
from mcp_junction.listener.replies import Reply, refusal
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import cycles, encode
from mcp_junction.protocol.cycles import ID_KEY
from mcp_junction.protocol.merged_list import cursor_in
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import (
    HANDSHAKE,
    INVALID_PARAMS,
    SERVER_INFO_KEY,
    STATELESS_VERSIONS,
)
from mcp_junction.sessions.clients import ClientRelay
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.upstream.state import SERVING
from mcp_junction.upstream.upstream import Upstream

CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}

Client = Session | StatelessClient
ReplyOrLater = Reply | Coroutine[Any, Any, Reply]


class ServerSummary:
    """Capabilities and instructions of the servers in a client's Scope."""

    def __init__(
        self,
        servers: Mapping[str, Upstream],
        live_catalog: LiveCatalog,
        startup: ServerStartup,
        settings: Settings,
        junction_id: str,
    ) -> None:
        self._servers = servers
        self._live_catalog = live_catalog
        self._startup = startup
        self._tokens = settings.instructions_tokens
        self._wait = settings.instructions_wait_ms / 1000
        self.junction_id = junction_id
        """The id of this Junction, by which a cycle of them is found."""

    def capabilities(self, scope: Scope) -> dict[str, Any]:
        """What a stateless client can have: also the extensions of stateless servers."""
        extensions: dict[str, Any] = {}
        for _, server in self._servers_in(scope):
            if server.greeting is not None:
                extensions |= server.greeting.extensions
        return {**CAPABILITIES, "extensions": extensions} if extensions else CAPABILITIES

    def instructions(self, scope: Scope) -> str:
        """The instructions of the servers in a Scope, as far as they are known by now.

        Those of a single server stay as they are; those of several stand under their names.
        """
        texts = [(key, server_instructions(server)) for key, server in self._servers_in(scope)]
        if len(texts) == 1:
            return texts[0][1]
        found = tuple((key, text) for key, text in texts if text)
        if not found:
            return ""
        from mcp_junction.catalog.instructions import join

        return join(found, self._tokens)

    @property
    def has_all_instructions(self) -> bool:
        """Whether every server has sent its instructions, or is not waited for."""
        return self._startup.check()

    async def wait_for_instructions(self, scope: Scope) -> None:
        """Wait for the instructions of servers of a Scope, at most ``instructions_wait_ms``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                await self._startup.wait(scope)

    def reachable_junctions(self, scope: Scope) -> set[str]:
        """The ids of this Junction and of all Junctions behind the servers in a Scope."""
        up = [server for _, server in self._servers_in(scope) if server.state in SERVING]
        return {self.junction_id}.union(*(one.condition.reachable_junctions for one in up))

    def _servers_in(self, scope: Scope) -> list[tuple[str, Upstream]]:
        """The servers of which something is visible in a Scope."""
        shows = self._live_catalog.catalog.shows_server
        return [(key, server) for key, server in self._servers.items() if shows(scope, key)]


def server_instructions(server: Upstream) -> str:
    """Return one server's instructions, cleaned; empty while it is down."""
    greeting = server.greeting
    if server.link is None or greeting is None or not greeting.instructions:
        return ""
    # Imported where it is used: most servers say nothing, and its patterns take milliseconds.
    from mcp_junction.catalog.instructions import clean

    return clean(greeting.instructions)


class ListenerHost(Protocol):
    """What a listener needs of the rest. The composition root provides it."""

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

    async def wait_until_settled(self, scope: Scope) -> None:
        """Wait until the servers that a Scope may show have started, for a limited time."""
        ...

    async def wait_for_offer(self, call: Call) -> None:
        """Wait until a server offers the target of ``call``, or all that it may see are up."""
        ...

    def spelling(self, endpoint: Endpoint, principal: Principal) -> Spelling:
        """The spelling of names at an endpoint, for an unknown client."""
        ...

    def note_client(self, client: Client) -> None:
        """Note the name and capabilities of a new client."""
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
        wait = partial(summary.wait_for_instructions, session.scope)
        return _after(wait, self._initialized, session, frame_id)

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
        wait = partial(self._backend.wait_until_settled, client.scope)
        return _after(wait, self._discovered, client, frame_id)

    def _discovered(self, client: StatelessClient, frame_id: bytes) -> Reply:
        found: dict[str, Any] = {
            "supportedVersions": STATELESS_VERSIONS,
            "capabilities": self._backend.summary.capabilities(client.scope),
        }
        payload = encode.dumps(self._with_instructions(client, found))
        ours = b'"%b":%b' % (ID_KEY.encode(), encode.dumps(self._backend.summary.junction_id))
        return Reply(encode.compact_result_with(frame_id, payload, self._stateless_tail(ours)))

    def _with_instructions(self, client: Client, greeting: dict[str, Any]) -> dict[str, Any]:
        """A greeting with the instructions of the servers that a client sees, if there are any."""
        instructions = self._backend.summary.instructions(client.scope)
        return {**greeting, "instructions": instructions} if instructions else greeting

    # -- lists

    def list(
        self, client: Client, frame_id: bytes, kind: ListKind, params: dict[str, Raw]
    ) -> ReplyOrLater:
        """Answer with a page of a list; the first one waits until the servers are up."""
        try:
            cursor, meta = cursor_in(params), params.get("_meta")
        except CursorError as error:
            return refusal(frame_id, INVALID_PARAMS, str(error))
        given = client, frame_id, kind, cursor, meta
        if self._backend.is_settled or client.has_listed:
            return self._page(*given)
        wait = partial(self._backend.wait_until_settled, client.scope)
        return _after(wait, self._page, *given)

    def _page(
        self,
        client: Client,
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
