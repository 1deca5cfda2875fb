"""Quotas: counts the sessions, streams, calls and bytes of each principal against its limits.

At a limit it chooses the session that has to end, and cuts the oldest stream or connection. It does
not end sessions or answer refused calls itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from mcp_junction.config.settings import UNLIMITED, Quota
from mcp_junction.policy.principal import Principal

T = TypeVar("T")


class BoundedSet(Generic[T]):
    """A set with a limit: an item added to a full one replaces the oldest."""

    __slots__ = ("_items", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def add(self, item: T, is_in_use: Callable[[T], bool] | None = None) -> T | None:
        """Add an item; return the one that has to go for it, if one has to.

        That is the oldest for which ``is_in_use`` is false; those before it count as new from then
        on. Each is asked twice at most: when all are in use, it is the oldest of all.
        """
        self._items.pop(item, None)
        oldest = self._oldest(is_in_use) if len(self._items) >= self.limit else None
        if oldest is not None:
            del self._items[oldest]
        self._items[item] = None
        return oldest

    def discard(self, item: T) -> None:
        self._items.pop(item, None)

    def _oldest(self, is_in_use: Callable[[T], bool] | None) -> T | None:
        if is_in_use is not None:
            for _ in range(2 * len(self._items)):
                first = next(iter(self._items))
                if not is_in_use(first):
                    return first
                del self._items[first]
                self._items[first] = None
        return next(iter(self._items), None)


class Closable(Protocol):
    """A stream or a connection that the service can end."""

    __slots__ = ()

    def cut(self) -> None:
        """End it, because its principal is over a limit."""


class QuotaUsage:
    """What one principal uses now, and its limits."""

    __slots__ = ("__weakref__", "bytes", "calls", "quota", "sessions", "streams", "unsent")

    def __init__(self, quota: Quota = UNLIMITED) -> None:
        self.quota = quota
        self.calls = 0
        """Calls in flight, over every front."""
        self.bytes = 0
        """Bytes that wait to be written to its clients, or are kept for them."""
        self.unsent: dict[Closable, int] = {}
        """Connections whose client reads too slowly, the oldest first, and what each has unsent."""
        self.sessions: BoundedSet[Any] = BoundedSet(quota.sessions)
        self.streams: BoundedSet[Closable] = BoundedSet(quota.streams)

    def open_stream(self, stream: Closable) -> None:
        """Count a stream; the principal's oldest ends when there are too many."""
        oldest = self.streams.add(stream)
        if oldest is not None:
            oldest.cut()

    def count_unsent(self, connection: Closable, size: int) -> None:
        """Count what a connection has unsent; the oldest ones end when it is too much."""
        self.unsent[connection] = size
        self.bytes += size
        while self.unsent and not self.has_room_for(0):
            oldest = next(iter(self.unsent))
            self.stop_counting(oldest)
            oldest.cut()

    def stop_counting(self, connection: Closable) -> None:
        """Stop counting a connection: its client has read enough, or has left."""
        self.bytes -= self.unsent.pop(connection, 0)

    def has_room_for(self, size: int) -> bool:
        """Whether so many bytes more may wait to be written."""
        return self.bytes + size <= self.quota.bytes


class Quotas:
    """The usage of every principal; an entry lives as long as somebody refers to it."""

    def __init__(self, quota: Quota = UNLIMITED) -> None:
        self.quota = quota
        self._usages: WeakValueDictionary[tuple[str, str, str], QuotaUsage] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._usages)

    def of(self, principal: Principal) -> QuotaUsage:
        """Return the usage of a principal, which all its keys share; per agent it calls for."""
        key = principal.id, principal.role.value, principal.acting_for
        found = self._usages.get(key)
        if found is None:
            found = self._usages[key] = QuotaUsage(self.quota)
        return found
