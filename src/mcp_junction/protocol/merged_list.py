"""MergedList: a merged list and its pages as ready-made bytes, with a cursor of our own."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw

from mcp_junction.errors import CursorError
from mcp_junction.protocol import frames
from mcp_junction.protocol.encode import to_one_line
from mcp_junction.protocol.versions import DEFAULT_PAGE_SIZE


class MergedList:
    """The items of one list method, cut into pages on demand; each page is encoded once."""

    __slots__ = ("_items", "_member", "_names", "_page_size", "_pages")

    def __init__(
        self,
        member: str,
        names: Sequence[str],
        items: Sequence[bytes],
        page_size: int = DEFAULT_PAGE_SIZE,
    ) -> None:
        self._member = member
        self._names = names
        self._items = items
        self._page_size = max(1, page_size)
        self._pages: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._items)

    def page(self, cursor: str | None = None) -> bytes:
        """The result object of the page that ``cursor`` names. Raises CursorError."""
        start = 0 if cursor is None else self._start(cursor)
        found = self._pages.get(start)
        if found is None:
            found = self._encode(start)
            if start % self._page_size == 0:  # how many are kept is not to be the caller's choice
                self._pages[start] = found
        return found

    def _encode(self, start: int) -> bytes:
        end = start + self._page_size
        body = b",".join(self._items[start:end])
        head = b'{"%b":[%b]' % (self._member.encode(), body)
        if end >= len(self._items):
            return to_one_line(head + b"}")
        return to_one_line(b'%b,"nextCursor":"%b"}' % (head, _cursor(end, self._names[end - 1])))

    def _start(self, cursor: str) -> int:
        start, last = _read(cursor)
        if 0 < start <= len(self._names) and self._names[start - 1] == last:
            return start
        try:
            return self._names.index(last) + 1
        except ValueError:
            raise CursorError("the list has changed; start again without a cursor") from None


def cursor_in(params: Mapping[str, Raw]) -> str | None:
    """The cursor that a client sends; None asks for the first page. Raises CursorError."""
    cursor = params.get("cursor")
    found = frames.text(cursor)
    if found is None and cursor is not None and bytes(cursor) != b"null":
        raise CursorError("a cursor is a string")
    return found


def _cursor(start: int, last: str) -> bytes:
    return base64.urlsafe_b64encode(msgspec.json.encode((start, last)))


def _read(cursor: str) -> tuple[int, str]:
    try:
        data = base64.urlsafe_b64decode(cursor.encode("ascii"))
        return msgspec.json.decode(data, type=tuple[int, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise CursorError("not a cursor of this list") from None
