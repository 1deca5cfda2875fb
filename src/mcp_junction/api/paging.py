"""Paging: a list cut into pages, by a cursor that survives changes of the list.

A cursor says after which item the next page begins, not how many there were before it.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from litestar.params import QueryParameter

from mcp_junction.errors import CursorError

MOST: Final = 1_000
USUAL: Final = 100

Limit = Annotated[
    int, QueryParameter(ge=1, le=MOST, description=f"At most so many items (default {USUAL}).")
]
Cursor = Annotated[
    str | None,
    QueryParameter(max_length=2_000, description="The `next_cursor` of the page before, as it is."),
]

T = TypeVar("T")
Key = tuple[Any, ...]


class Page(NamedTuple, Generic[T]):
    """Part of a list, how long the whole is, and where the next part begins."""

    items: Sequence[T]
    total: int
    next_cursor: str | None


def page(items: Sequence[T], key: Callable[[T], Key], limit: int, cursor: str | None) -> Page[T]:
    """The page of ``items``, which are in the order of their keys, that follows a cursor."""
    begin = 0
    if cursor:
        after = read_cursor(cursor)
        try:
            begin = bisect_right(items, after, key=key)
        except TypeError:
            raise CursorError("is not a cursor of this list") from None
    chosen = items[begin : begin + limit]
    more = begin + len(chosen) < len(items)
    return Page(chosen, len(items), write_cursor(key(chosen[-1])) if more and chosen else None)


def write_cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_cursor(text: str) -> Key:
    """The key in a cursor. Raises CursorError."""
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
        return tuple(msgspec.json.decode(raw, type=list[str | int]))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise CursorError("is not a cursor of ours") from None
