"""ClientCache: what stateless requests say of their senders, parsed once per distinct ``_meta``.

A client repeats itself with each request, nearly always in the same bytes. What belongs to one
request only, such as a progress token, is read each time. It does not compare headers and does not
look at what the request wants.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.errors import FrameError
from mcp_junction.listener.backend import Backend
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.envelope import RequestEnvelope
from mcp_junction.protocol.names import spelling_for
from mcp_junction.protocol.versions import INVALID_PARAMS, LOG_LEVELS, STATELESS_VERSIONS
from mcp_junction.sessions.stateless import StatelessClient

MAX_KNOWN: Final = 4096
MAX_BYTES: Final = 2048
"""Who says more of itself is introduced anew with each request."""

_VERSIONS: Final = frozenset(encode.dumps(version) for version in STATELESS_VERSIONS)
_LEVELS: Final = {name: level for level, name in enumerate(LOG_LEVELS)}


class SenderInfo(msgspec.Struct, frozen=True):
    """What one request says of its sender."""

    visitor: StatelessClient | None
    """Who it is; None when it speaks a version that we do not."""
    version: bytes
    """As a header says it."""
    level: int | None
    progress_token: Raw | None
    is_bare: bool
    """Whether there is nothing else in ``_meta``."""


class LastSender(msgspec.Struct, frozen=True):
    """An introduction, and who made it where in which bytes."""

    meta: Raw
    principal: Principal | None
    endpoint: Endpoint | None
    said: SenderInfo


_NOT_YET: Final = LastSender(Raw(), None, None, SenderInfo(None, b"", None, None, False))


class ClientCache:
    """Those that were made, as many as are worth remembering."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[tuple[int, int, bytes], SenderInfo] = {}
        self.last = _NOT_YET
        """The latest: most often it is the next one, too, and is looked at before ``read``."""
        self._visitors: dict[tuple[int, int, bytes, bytes], StatelessClient] = {}
        """By what they say of themselves; each holds what its key has only the identity of."""

    def __len__(self) -> int:
        return len(self._known) + len(self._visitors)

    def read(self, principal: Principal, endpoint: Endpoint, meta: Raw | None) -> SenderInfo:
        """The introduction in a request's ``_meta``. Raises FrameError when it is none."""
        said = frames.octets(meta or b"")
        key = id(principal), id(endpoint), said
        found = self._known.get(key)
        if found is None:
            found = self._made(principal, endpoint, envelope.read_envelope(meta), said)
            if not found.is_bare or found.visitor is None or len(said) > MAX_BYTES:
                return found
            self._make_room()
            self._known[key] = found
        self.last = LastSender(Raw(said), principal, endpoint, found)
        return found

    def _made(
        self, principal: Principal, endpoint: Endpoint, said: RequestEnvelope, meta: bytes
    ) -> SenderInfo:
        level = None if said.log_level is None else _LEVELS.get(said.log_level)
        if level is None and said.log_level is not None:
            raise FrameError(INVALID_PARAMS, f"logLevel is one of {', '.join(LOG_LEVELS)}")
        token = envelope.valid_progress_token(said.progress_token)
        if token is None and frames.octets(said.progress_token) not in (b"", b"null"):
            raise FrameError(INVALID_PARAMS, "progressToken is a string or a number")
        version = frames.octets(said.version)
        return SenderInfo(
            self._visitor(principal, endpoint, said) if version in _VERSIONS else None,
            version[1:-1],
            level,
            token,
            not said.progress_token and envelope.is_envelope_only(meta),
        )

    def _visitor(
        self, principal: Principal, endpoint: Endpoint, said: RequestEnvelope
    ) -> StatelessClient:
        key = (
            id(principal),
            id(endpoint),
            frames.octets(said.capabilities),
            frames.octets(said.client),
        )
        visitor = self._visitors.get(key)
        if visitor is None:
            visitor = self._introduced(principal, endpoint, said)
            if len(said.capabilities) + len(said.client) <= MAX_BYTES:
                self._make_room()
                self._visitors[key] = visitor
        return visitor

    def _make_room(self) -> None:
        if len(self) >= MAX_KNOWN:  # they are only remembered, not needed
            self._known.clear()
            self._visitors.clear()

    def _introduced(
        self, principal: Principal, endpoint: Endpoint, said: RequestEnvelope
    ) -> StatelessClient:
        envelope.check_client_info(said.client, said.capabilities)
        try:
            capabilities = frames.members(said.capabilities)
            info = frames.members(said.client)
        except FrameError:
            words = "clientCapabilities and clientInfo must be objects"
            raise FrameError(INVALID_PARAMS, words) from None
        spelling = self._backend.spelling(endpoint)
        if self._backend.settings.separator is None:
            spelling = spelling_for(frames.text(info.get("name")) or "", spelling)
        usage = self._backend.quotas.of(principal)
        visitor = StatelessClient(
            principal,
            endpoint,
            spelling,
            capabilities,
            said.client.copy(),
            usage,
            self._backend.scopes,
        )
        self._backend.note_client(visitor)
        return visitor
