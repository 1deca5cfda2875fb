"""Subscriptions: who wants to hear about which resource of which server, counted.

A server is told to stop when the last session that wanted a resource no longer does. What a server
cannot remember across a new connection, we do, and the address that a session knows a resource by.
"""

from __future__ import annotations


class Subscriptions:
    """Sessions by server and address, each with its own word for it. Knows neither's inside."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, str], dict[object, str]] = {}

    def add(self, server: str, uri: str, session: object, name: str) -> None:
        self._wanted.setdefault((server, uri), {})[session] = name

    def remove(self, server: str, uri: str, session: object) -> bool:
        """Whether that was the last session to want it."""
        sessions = self._wanted.get((server, uri))
        if sessions is None:
            return True
        sessions.pop(session, None)
        if sessions:
            return False
        del self._wanted[server, uri]
        return True

    def drop(self, session: object) -> list[tuple[str, str]]:
        """A session is over; what nobody wants any more."""
        mine = [key for key, sessions in self._wanted.items() if session in sessions]
        return [key for key in mine if self.remove(*key, session)]

    def of(self, server: str, session: object = None) -> list[str]:
        """Every address of a server that someone wants, or that one session does."""
        return [
            uri
            for (key, uri), sessions in self._wanted.items()
            if key == server and (session is None or session in sessions)
        ]

    def rename(self, old: str, new: str) -> None:
        """A server has another key."""
        for key, uri in [known for known in self._wanted if known[0] == old]:
            self._wanted[new, uri] = self._wanted.pop((key, uri))

    def forget(self, server: str) -> None:
        """There is no such server any more."""
        for known in [known for known in self._wanted if known[0] == server]:
            del self._wanted[known]

    def names(self, server: str, uri: str) -> dict[object, str]:
        """Who wants an address, and what each calls it."""
        return dict(self._wanted.get((server, uri), ()))
