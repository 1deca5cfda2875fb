"""ConnectedClients: holds the connected clients, and notifies them of changed lists.

ClientRelay: passes notifications of clients on to servers, and ends what servers hold for them.
Coalescer: one notification for many changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Final

from msgspec import Raw

from mcp_junction.calls.stages.subscribe import Subscriptions
from mcp_junction.catalog.live_catalog import ListChange
from mcp_junction.catalog.scope import Scope
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import LIST_CHANGES, LOG_LEVELS
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, is_notified_by
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.upstream import Upstream

DELAY: Final = 0.02
TOLD_AFTER: Final = 0.1
"""Seconds in which what a client tells servers again becomes one notification."""
MOST_TOLD: Final = 4_096
"""Bytes of its params that are passed on at most."""


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


class ConnectedClients:
    """Every session, every listening stream, and their subscriptions."""

    def __init__(self) -> None:
        self.sessions: set[Session] = set()
        self.listens: set[Listen] = set()
        self.subscriptions = Subscriptions()
        self._announcers = {
            method: Coalescer(partial(self._announce, method)) for method in LIST_CHANGES
        }
        self._changes: dict[str, list[tuple[int, ListChange]]] = {}

    def announce(self, changes: Iterable[ListChange], generation: int) -> None:
        """Tell clients, a moment later, that lists changed in this generation of the catalog."""
        for change in changes:
            method = change.kind.changed
            self._changes.setdefault(method, []).append((generation, change))
            self._announcers[method].changed()

    def _announce(self, method: str) -> None:
        changes = self._changes.pop(method, [])
        changed_in = cache(partial(_last_visible, changes))  # asked once for each Scope
        for session in self.sessions:
            seen = session.listed.get(method) if session.listed else None
            if seen is not None and seen < changed_in(session.scope):
                session.notify(method)
        for listen in self.listens:
            if method in listen.announcements and changed_in(listen.scope) >= 0:
                listen.notify(method)

    async def set_log_level(self, upstream: Upstream) -> None:
        """Tell a server the lowest log level that a client of it wants."""
        own = upstream.session
        assert own is None or isinstance(own, Session)
        sessions = self.sessions if own is None else {own}
        wanted = [
            one.log_level or 0
            for one in sessions
            if one.is_open and one.may_call and one.scope.could_see(upstream.key)
        ]
        if wanted:
            await upstream.set_log_level(LOG_LEVELS[min(wanted)], exactly=True)

    def close(self, reason: str) -> None:
        """Announce nothing more, and end every session."""
        for announcer in self._announcers.values():
            announcer.close()
        for session in self.sessions:
            session.close(reason)


class ClientRelay:
    """Passes notifications, log levels and subscriptions of clients on to servers."""

    def __init__(
        self, servers: Mapping[str, Upstream], clients: ConnectedClients, tasks: TaskScope
    ) -> None:
        self._servers = servers
        self._clients = clients
        self._tasks = tasks
        self._next: dict[tuple[Session, str], Raw | bytes | None] = {}
        """What a session has told servers a moment ago, with the params of the next, if it came."""

    def notify_servers(self, session: Session, method: str, params: Raw | bytes) -> None:
        """Pass a client's notification on to the servers that it may see.

        Of those that follow soon only the last is passed on, later; long params are left out.
        """
        if len(params) > MOST_TOLD:
            params = b""
        told = session, method
        if told in self._next:
            self._next[told] = params
            return
        self._next[told] = None
        asyncio.get_running_loop().call_later(TOLD_AFTER, self._notify_next, told)
        scope = session.scope
        for upstream in self._links():
            whose = session if upstream.is_isolated else None
            link = upstream.link if upstream.session is whose else None
            if link is not None and scope.could_see(upstream.key):
                link.notify(method, params)

    def _notify_next(self, told: tuple[Session, str]) -> None:
        params = self._next.pop(told)
        if params is not None and told[0] in self._clients.sessions:
            self.notify_servers(*told, params)

    def renew_log_levels(self) -> None:
        """Tell servers the log levels, since clients may see others than they did."""
        self._tasks.spawn(self.update_log_levels())

    async def update_log_levels(self) -> None:
        """Tell every server the log level that is wanted of it now."""
        await asyncio.gather(*map(self._clients.set_log_level, self._links()))

    def end_session(self, session: Session) -> None:
        """End what servers hold for a session that is over."""
        self._clients.sessions.discard(session)
        for upstream in self._servers.values():
            upstream.extra_links.end_session(session)
        self._unsubscribe(session)

    def add_listen(self, listen: Listen) -> None:
        """Announce changed lists to a listening stream, from now on."""
        self._clients.listens.add(listen)

    def remove_listen(self, listen: Listen) -> None:
        """End what servers hold for a listening stream that is over."""
        self._clients.listens.discard(listen)
        self._unsubscribe(listen)

    def unsubscribe_hidden(
        self,
        concerns: Callable[[Session | Listen], bool],
        can_see: Callable[[Session | Listen, Pair], bool],
    ) -> set[Listen]:
        """End subscriptions to what is hidden now from subscribers that this ``concerns``.

        Returns the listens among them: they were promised what they do not get any more.
        """
        listens: set[Listen] = set()
        register = self._clients.subscriptions
        for subscriber in register.subscribers:
            if not isinstance(subscriber, Session | Listen) or not concerns(subscriber):
                continue
            for server, uri in register.of_subscriber(subscriber):
                if can_see(subscriber, Pair(server, uri)):
                    continue
                if isinstance(subscriber, Listen):
                    listens.add(subscriber)
                elif register.remove(server, uri, subscriber):
                    self._unsubscribe_last(server, uri, subscriber)
        return listens

    def _links(self) -> list[Upstream]:
        return [u for server in self._servers.values() for u in (server, *server.extra_links)]

    def _unsubscribe(self, subscriber: object) -> None:
        """Unsubscribe from what nobody else wants to hear of."""
        for server, uri in self._clients.subscriptions.drop(subscriber):
            self._unsubscribe_last(server, uri, subscriber)

    def _unsubscribe_last(self, server: str, uri: str, subscriber: object) -> None:
        upstream = self._servers.get(server)
        if upstream is not None and is_notified_by(upstream, subscriber):
            self._tasks.spawn(self._unsubscribe_from(upstream, uri))

    async def _unsubscribe_from(self, upstream: Upstream, uri: str) -> None:
        if not self._clients.subscriptions.names(upstream.key, uri):  # else one came meanwhile
            await upstream.unsubscribe(uri)


def _last_visible(changes: Sequence[tuple[int, ListChange]], scope: Scope) -> int:
    """Return the last generation in which something changed that a Scope admits; -1 is none."""
    return next(
        (
            generation
            for generation, change in reversed(changes)
            if scope.grants is None or change.is_visible(scope)
        ),
        -1,
    )
