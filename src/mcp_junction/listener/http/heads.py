"""CachedHead: the parsed head of a request, reused for requests that begin with the same bytes.

A client sends the same head with every call; only the length of the body differs. So a connection
keeps the last head that httptools has parsed, and the next request that begins with it and came in
whole is not parsed again. The cache depends on the bytes alone: who sends a request, and whether it
is allowed, is checked each time.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from mcp_junction.protocol.versions import HANDSHAKE_VERSIONS

LONGEST: Final = 4_096
_END: Final = b"\r\n\r\n"
_NAME: Final = b"content-length"
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r\n")
_DIGITS: Final = 9
_VERSIONS: Final = frozenset(version.encode() for version in HANDSHAKE_VERSIONS)
_UNKEPT: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


class Fields(list[tuple[bytes, bytes]]):
    """The headers of a request in order, as ASGI wants them, and by name: the last one wins."""

    __slots__ = ("by_name", "carries", "is_checked", "is_stateless", "session_id")

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[bytes, bytes] = {}
        self.carries: bool | None = None
        """Whether one of them carries something for us; None until somebody has looked."""
        self.is_checked = False
        """Whether this is the head of a POST with JSON to the first endpoint, from where requests
        are let in, which has a key and carries nothing: all that does not depend on whose key."""
        self.session_id = ""
        """The session that it names, where it is checked and of the handshake era."""
        self.is_stateless = False
        """Whether it is checked, and of the stateless era."""

    def with_length(self, length: bytes) -> Fields:
        """Copy the headers with another content length."""
        fields = Fields()
        fields += [(name, length if name == _NAME else value) for name, value in self]
        fields.by_name = {**self.by_name, _NAME: length}
        fields.carries, fields.is_checked = self.carries, self.is_checked
        fields.session_id, fields.is_stateless = self.session_id, self.is_stateless
        return fields


class CachedHead(msgspec.Struct):
    """The bytes of a parsed head, and the ASGI scope made of them on this connection."""

    head: bytes
    size: int
    """The length of the body that it announces."""
    place: tuple[int, int]
    """The position of that length in the head."""
    scope: dict[str, Any]

    def match(self, data: bytes) -> tuple[dict[str, Any], bytes] | None:
        """Return scope and body of one whole request with this head; None for anything else."""
        if not data.startswith(self.head) and not self._adopt_length(data):
            return None
        body = data[len(self.head) :]
        return (self.scope, body) if len(body) == self.size else None

    def _adopt_length(self, data: bytes) -> bool:
        """Take over another content length; whether nothing else is different."""
        start, stop = self.place
        end = data.find(b"\r", start, start + _DIGITS + 1)
        length = data[start:end]
        rest = self.head[stop:]
        if end < 0 or not length.isdigit() or not data.startswith(rest, end):
            return False
        if not data.startswith(self.head[:start]):
            return False
        self.head = self.head[:start] + length + rest
        self.size = int(length)
        self.place = start, end
        self.scope = {**self.scope, "headers": self.scope["headers"].with_length(length)}
        return True


def cache_head(data: bytes, scope: dict[str, Any]) -> CachedHead | None:
    """Make the cache entry of a request that was parsed from ``data``, if it can be reused."""
    end = data.find(_END, 0, LONGEST)
    length = _LENGTH.search(data, 0, end + 2) if end > 0 else None
    if length is None or end + len(_END) + int(length[1]) != len(data):
        return None
    lines = data.count(b"\n", 0, end)
    fields: Fields = scope["headers"]
    plain = lines == data.count(b"\r\n", 0, end) == len(fields) == len(fields.by_name)
    if not plain or not _UNKEPT.isdisjoint(fields.by_name):
        return None
    return CachedHead(data[: end + len(_END)], int(length[1]), length.span(1), scope)


def has_handshake_version(headers: dict[bytes, bytes]) -> bool:
    """Whether a request says no version, or one of the handshake era."""
    version = headers.get(b"mcp-protocol-version")
    return not version or version in _VERSIONS
