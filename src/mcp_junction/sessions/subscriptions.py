"""Subscriptions: the subscribers of each resource. Coalescer: one notification for many changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

DELAY: Final = 0.02


class Coalescer:
    """Calls ``tell`` a moment after the first of a run of changes."""

    __slots__ = ("_delay", "_handle", "_tell")

    def __init__(self, tell: Callable[[], None], delay: float = DELAY) -> None:
        self._tell = tell
        self._delay = delay
        self._handle: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._delay, self._now)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _now(self) -> None:
        self._handle = None
        self._tell()


class Subscriptions:
    """The subscribers by server and URI, each with the URI that it subscribed to."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, str], dict[object, str]] = {}

    def add(self, server: str, uri: str, session: object, name: str) -> None:
        self._wanted.setdefault((server, uri), {})[session] = name

    def remove(self, server: str, uri: str, session: object) -> bool:
        """Remove one subscription; return whether it was the last."""
        sessions = self._wanted.get((server, uri))
        if sessions is None:
            return True
        sessions.pop(session, None)
        if sessions:
            return False
        del self._wanted[server, uri]
        return True

    def drop(self, session: object) -> list[tuple[str, str]]:
        """Remove a session; return the resources that nobody else wants."""
        mine = [key for key, sessions in self._wanted.items() if session in sessions]
        return [key for key in mine if self.remove(*key, session)]

    def of(self, server: str, session: object = None) -> list[str]:
        """Every URI of a server that someone subscribed to, or that one session did."""
        return [
            uri
            for (key, uri), sessions in self._wanted.items()
            if key == server and (session is None or session in sessions)
        ]

    def rename(self, old: str, new: str) -> None:
        """Move the subscriptions of a server to its new key."""
        for key, uri in [known for known in self._wanted if known[0] == old]:
            self._wanted[new, uri] = self._wanted.pop((key, uri))

    def forget(self, server: str) -> None:
        """Remove the subscriptions to a server that is gone."""
        for known in [known for known in self._wanted if known[0] == server]:
            del self._wanted[known]

    def names(self, server: str, uri: str) -> dict[object, str]:
        """The subscribers of an address, and the name each uses for it."""
        return dict(self._wanted.get((server, uri), ()))
