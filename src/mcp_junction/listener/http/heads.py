"""Heads: what the head of a request says, read once for all requests that have the same one.

A client sends the same head with every call; only the length of the body differs. So a head that
httptools has read is kept, without that length, and the next request that begins with it and came
in whole is not parsed at all. What is kept follows from the bytes alone: who is asking, and whether
it is let in, is found out each time. It parses nothing itself.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

MOST: Final = 1_000
"""Heads that are kept, of all connections; then they are forgotten, and read again."""
LONGEST: Final = 4_096
_END: Final = b"\r\n\r\n"
_NAME: Final = b"content-length"
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r\n")
_UNKEPT: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


class Fields(list[tuple[bytes, bytes]]):
    """The headers of a request in their order, as ASGI wants them; and by name, the last counts."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[bytes, bytes] = {}


class Head(NamedTuple):
    """A head that was read: what it adds to the scope of a connection."""

    scope: dict[str, Any]
    fields: Fields

    def of_length(self, length: bytes) -> Head:
        """The same, before a body of this length."""
        if self.fields.by_name[_NAME] == length:
            return self
        fields = Fields()
        fields.extend((name, length if name == _NAME else value) for name, value in self.fields)
        fields.by_name = {**self.fields.by_name, _NAME: length}
        return Head({**self.scope, "headers": fields}, fields)


class Heads:
    """The heads that were seen of late."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def __len__(self) -> int:
        return len(self._known)

    def whole(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body, if this is one whole request with a head that is known."""
        end = data.find(_END, 0, LONGEST)
        if end < 0:
            return None
        length = _LENGTH.search(data, 0, end + 2)
        if length is None or end + 4 + int(length[1]) != len(data):
            return None
        known = self._known.get(data[: length.start(1)] + data[length.end(1) : end])
        return None if known is None else (known.of_length(length[1]), data[end + 4 :])

    def keep(self, data: bytes, head: Head) -> None:
        """Remember the head of a request that was read from exactly this; it has a body."""
        end = data.find(_END, 0, LONGEST)
        length = _LENGTH.search(data, 0, end + 2) if end > 0 else None
        if length is None or end + 4 + int(length[1]) != len(data):
            return
        lines = data.count(b"\n", 0, end)
        fields = head.fields
        plain = lines == data.count(b"\r\n", 0, end) == len(fields) == len(fields.by_name)
        if plain and _UNKEPT.isdisjoint(fields.by_name):
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[data[: length.start(1)] + data[length.end(1) : end]] = head
