"""Heads: what the head of a request says, read once for all requests that begin with the same one.

A client sends the same head with every call; only the length of the body differs. So a connection
remembers the last head that httptools has read for it, and the next request that begins with it and
came in whole is not parsed at all. What is remembered follows from the bytes alone: who is asking,
and whether it is let in, is found out each time. It parses nothing itself.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

LONGEST: Final = 4_096
_END: Final = b"\r\n\r\n"
_NAME: Final = b"content-length"
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r\n")
_DIGITS: Final = 9
_UNKEPT: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


class Fields(list[tuple[bytes, bytes]]):
    """The headers of a request in their order, as ASGI wants them; and by name, the last counts."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[bytes, bytes] = {}

    def of_length(self, length: bytes) -> Fields:
        """The same, before a body of this length."""
        fields = Fields()
        fields += [(name, length if name == _NAME else value) for name, value in self]
        fields.by_name = {**self.by_name, _NAME: length}
        return fields


class Known(msgspec.Struct):
    """A head that was read: its bytes, and the scope that they lead to on this connection."""

    head: bytes
    size: int
    """Of the body that it announces."""
    place: tuple[int, int]
    """Where in it the length stands."""
    scope: dict[str, Any]

    def again(self, data: bytes) -> tuple[dict[str, Any], bytes] | None:
        """Scope and body, if this is one whole request with the same head."""
        if not data.startswith(self.head) and not self._has_adopted(data):
            return None
        body = data[len(self.head) :]
        return (self.scope.copy(), body) if len(body) == self.size else None

    def _has_adopted(self, data: bytes) -> bool:
        """Whether another length was all that is different, and is now known."""
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
        self.scope = {**self.scope, "headers": self.scope["headers"].of_length(length)}
        return True


def known(data: bytes, scope: dict[str, Any]) -> Known | None:
    """The head of a request that was read from exactly this, if one like it may be recognised."""
    end = data.find(_END, 0, LONGEST)
    length = _LENGTH.search(data, 0, end + 2) if end > 0 else None
    if length is None or end + len(_END) + int(length[1]) != len(data):
        return None
    lines = data.count(b"\n", 0, end)
    fields: Fields = scope["headers"]
    plain = lines == data.count(b"\r\n", 0, end) == len(fields) == len(fields.by_name)
    if not plain or not _UNKEPT.isdisjoint(fields.by_name):
        return None
    return Known(data[: end + len(_END)], int(length[1]), length.span(1), scope.copy())
