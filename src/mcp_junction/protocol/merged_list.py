"""MergedList: cuts a merged list into encoded pages, with a cursor of our own. PageCache."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import CursorError
from mcp_junction.protocol import frames
from mcp_junction.protocol.encode import to_one_line
from mcp_junction.protocol.versions import DEFAULT_PAGE_SIZE

Load = Callable[[], tuple[Sequence[str], Callable[[int, int], Iterable[bytes]]]]
"""Gives the names of a list, and what encodes the items from one place to another."""


_ENTRY: Final = 512
"""Bytes that an entry of the cache takes beside its page."""


class PageCache:
    """Encoded pages of all lists; beyond so many bytes, those used longest ago are dropped.

    The newest page stays, however large it is. A key must hold nothing: it stays with its pages
    when the list that it stands for is gone.
    """

    __slots__ = ("_limit", "_pages", "_size")

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self._limit = limit
        self._pages: dict[tuple[object, str | None], bytes] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: object, cursor: str | None) -> bytes | None:
        """The page of a list, if it was put here and is still here."""
        found = self._pages.pop((key, cursor), None)
        if found is not None:
            self._pages[key, cursor] = found  # the last are the newest
        return found

    def put(self, key: object, cursor: str | None, page: bytes) -> None:
        replaced = self._pages.pop((key, cursor), None)
        if replaced is not None:
            self._size -= len(replaced) + _ENTRY
        self._pages[key, cursor] = page
        self._size += len(page) + _ENTRY
        while self._size > self._limit and len(self._pages) > 1:
            self._size -= len(self._pages.pop(next(iter(self._pages)))) + _ENTRY


class MergedList:
    """The items of one list method, cut into pages on demand.

    A page is encoded once, as long as the cache has it under ``key``, which tells this list from
    all others there.
    """

    __slots__ = ("_cache", "_key", "_load", "_member", "_page_size")

    def __init__(
        self,
        member: str,
        load: Load,
        cache: PageCache,
        key: object,
        page_size: int = DEFAULT_PAGE_SIZE,
    ) -> None:
        self._member = member
        self._load = load
        self._cache = cache
        self._key = key, member
        self._page_size = max(1, page_size)

    def page(self, cursor: str | None = None) -> bytes:
        """The result object of the page that ``cursor`` names. Raises CursorError."""
        found = self._cache.get(self._key, cursor)
        if found is None:
            names, items = self._load()
            start = 0 if cursor is None else _start(cursor, names)
            found = self._encode(names, items, start)
            if start % self._page_size == 0:  # what is kept is not to be the caller's choice
                ours = _cursor(start, names[start - 1]).decode() if start else None
                self._cache.put(self._key, ours, found)
        return found

    def _encode(
        self, names: Sequence[str], items: Callable[[int, int], Iterable[bytes]], start: int
    ) -> bytes:
        end = start + self._page_size
        head = b'{"%b":[%b]' % (self._member.encode(), b",".join(items(start, end)))
        if end >= len(names):
            return to_one_line(head + b"}")
        return to_one_line(b'%b,"nextCursor":"%b"}' % (head, _cursor(end, names[end - 1])))


def _start(cursor: str, names: Sequence[str]) -> int:
    """Where the page of a cursor begins. Raises CursorError."""
    start, last = _read(cursor)
    if 0 < start <= len(names) and names[start - 1] == last:
        return start
    try:
        return names.index(last) + 1
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
