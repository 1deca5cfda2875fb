"""ClientCache: parses the senders of stateless requests, once per distinct ``_meta``.

A client describes itself in each request, nearly always in the same bytes. What belongs to one
request only, such as a progress token, is read each time. Headers are compared elsewhere.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.errors import FrameError
from mcp_junction.listener.answers import ListenerHost
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.envelope import RequestEnvelope
from mcp_junction.protocol.names import spelling_for
from mcp_junction.protocol.versions import INVALID_PARAMS, LOG_LEVELS, STATELESS_VERSIONS
from mcp_junction.sessions.stateless import StatelessClient

MAX_KNOWN: Final = 4096
MAX_BYTES: Final = 2048
"""A longer ``_meta`` is parsed anew with each request."""

_VERSIONS: Final = frozenset(encode.dumps(version) for version in STATELESS_VERSIONS)
_LEVELS: Final = {name: level for level, name in enumerate(LOG_LEVELS)}


class SenderInfo(msgspec.Struct, frozen=True):
    """The sender of one request, as its ``_meta`` describes it."""

    client: StatelessClient | None
    """The client; None when it speaks a version that we do not."""
    version: bytes
    """The protocol version, as a header has it."""
    level: int | None
    progress_token: Raw | None
    has_plain_meta: bool
    """Whether there is nothing else in ``_meta``."""


class LastSender(msgspec.Struct, frozen=True):
    """The sender of the latest request: its principal, endpoint and ``_meta``."""

    meta: Raw
    principal: Principal | None
    endpoint: Endpoint | None
    sender: SenderInfo


_NOBODY: Final = LastSender(Raw(), None, None, SenderInfo(None, b"", None, None, False))


class ClientCache:
    """Parses the senders of requests, and caches those that are short enough."""

    def __init__(self, backend: ListenerHost) -> None:
        self._backend = backend
        self._known: dict[tuple[int, int, bytes], SenderInfo] = {}
        self.last = _NOBODY
        """Most often the next request is of the same sender: compare with this before ``read``."""
        self._clients: dict[tuple[int, int, bytes, bytes], StatelessClient] = {}
        """Clients by their own descriptions. Keyed by id(); the value keeps those objects alive."""

    def __len__(self) -> int:
        return len(self._known) + len(self._clients)

    def read(self, principal: Principal, endpoint: Endpoint, meta: Raw | None) -> SenderInfo:
        """Read the sender from a request's ``_meta``. Raises FrameError if that is wrong."""
        text = frames.octets(meta or b"")
        key = id(principal), id(endpoint), text
        found = self._known.get(key)
        if found is None:
            found = self._read_sender(principal, endpoint, envelope.read_envelope(meta), text)
            if not found.has_plain_meta or found.client is None or len(text) > MAX_BYTES:
                return found
            self._make_room()
            self._known[key] = found
        self.last = LastSender(Raw(text), principal, endpoint, found)
        return found

    def _read_sender(
        self, principal: Principal, endpoint: Endpoint, sender: RequestEnvelope, meta: bytes
    ) -> SenderInfo:
        level = None if sender.log_level is None else _LEVELS.get(sender.log_level)
        if level is None and sender.log_level is not None:
            raise FrameError(INVALID_PARAMS, f"logLevel is one of {', '.join(LOG_LEVELS)}")
        token = envelope.valid_progress_token(sender.progress_token)
        if token is None and frames.octets(sender.progress_token) not in (b"", b"null"):
            raise FrameError(INVALID_PARAMS, "progressToken is a string or a number")
        version = frames.octets(sender.version)
        return SenderInfo(
            self._client(principal, endpoint, sender) if version in _VERSIONS else None,
            version[1:-1],
            level,
            token,
            not sender.progress_token and envelope.is_envelope_only(meta),
        )

    def _client(
        self, principal: Principal, endpoint: Endpoint, sender: RequestEnvelope
    ) -> StatelessClient:
        key = (
            id(principal),
            id(endpoint),
            frames.octets(sender.capabilities),
            frames.octets(sender.client),
        )
        client = self._clients.get(key)
        if client is None:
            client = self._make_client(principal, endpoint, sender)
            if len(sender.capabilities) + len(sender.client) <= MAX_BYTES:
                self._make_room()
                self._clients[key] = client
        return client

    def _make_room(self) -> None:
        if len(self) >= MAX_KNOWN:  # they are only remembered, not needed
            self._known.clear()
            self._clients.clear()

    def _make_client(
        self, principal: Principal, endpoint: Endpoint, sender: RequestEnvelope
    ) -> StatelessClient:
        envelope.check_client_info(sender.client, sender.capabilities)
        try:
            capabilities = frames.members(sender.capabilities)
            info = frames.members(sender.client)
        except FrameError:
            words = "clientCapabilities and clientInfo must be objects"
            raise FrameError(INVALID_PARAMS, words) from None
        spelling = self._backend.spelling(endpoint, principal)
        name = frames.text(info.get("name")) or ""
        if self._backend.settings.separator is None:
            spelling = spelling_for(name, spelling)
        usage = self._backend.quotas.of(principal)
        client = StatelessClient(
            principal,
            endpoint,
            spelling,
            capabilities,
            sender.client.copy(),
            usage,
            self._backend.scopes,
        )
        client.client = name
        self._backend.note_client(client)
        return client
