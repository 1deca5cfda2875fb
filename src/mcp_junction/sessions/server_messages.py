"""ServerMessages: routes messages of servers that belong to no call to the right sessions.

A log message or a question that names no call reaches sessions of one principal only: the one that
alone has used the link it came on. Among several sessions of that principal a log message is told
to each that can see the server; a question is put to the only one, and refused when there are more:
the server would take the answer of the wrong window for its user's. What belongs to a call under
way was handed to that call before it comes here. Changed lists are the catalog's matter.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Raw

from mcp_junction.catalog.items import RESOURCES
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import LOG_MESSAGE, METHOD_NOT_FOUND
from mcp_junction.sessions.clients import ConnectedClients
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, is_notified_by
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.upstream import Upstream

LOG: Final = "log"
QUESTION: Final = "question"
RESOURCE_UPDATED: Final = "notifications/resources/updated"


class ServerMessages:
    """Routes messages that belong to no call from servers to clients, and keeps servers informed
    of what clients want to hear."""

    def __init__(self, clients: ConnectedClients, tasks: TaskScope) -> None:
        self._clients = clients
        self._subscriptions = clients.subscriptions
        self._tasks = tasks
        self.unattributed = {LOG: 0, QUESTION: 0}
        """How many were dropped or refused because nobody could know whose they are."""

    def count_unattributed(self, method: str) -> None:
        """Count a message that was dropped or refused, because its session is unknown."""
        self.unattributed[LOG if method == LOG_MESSAGE else QUESTION] += 1

    def receive(self, upstream: Upstream, frame: Frame) -> None:
        """Hand on a notification of a server."""
        if frame.method == LOG_MESSAGE:  # to the sessions of the only principal on the link
            rank = envelope.level_rank(frame.params)
            message = encode.notification(frame.method, frame.params)
            for session in self._sessions_of(upstream):
                session.offer_log(rank, message)
        elif frame.method == RESOURCE_UPDATED:
            self._notify_updated(upstream, frame)

    async def ask(self, upstream: Upstream, frame: Frame) -> Outcome:
        """Put a question to the only session of the only principal that has used the link."""
        sessions = self._sessions_of(upstream)
        if len(sessions) != 1:
            self.count_unattributed(frame.method)
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {frame.method}")
        return await sessions[0].ask(frame.method, frame.params)

    def _notify_updated(self, upstream: Upstream, frame: Frame) -> None:
        """Tell subscribers of a resource that it changed, by the address they know it by.

        A subscriber from whom it has been hidden since is told nothing.

        Where several principals use the link they are told nothing but that address.
        """
        params = frames.members(frame.params)
        uri = frames.text(params.get("uri")) or ""
        link = upstream.current
        is_shared = link is None or link.users.only is None
        for subscriber, name in self._subscriptions.names(upstream.key, uri).items():
            assert isinstance(subscriber, Session | Listen)
            scope = subscriber.scope
            is_visible = scope.grants is None or scope.admits(RESOURCES, Pair(upstream.key, uri))
            if not is_visible or not is_notified_by(upstream, subscriber):
                continue
            if is_shared or name != uri:
                known = {} if is_shared else params
                subscriber.notify(
                    frame.method, encode.dumps(known | {"uri": Raw(encode.dumps(name))})
                )
            else:
                subscriber.notify(frame.method, frame.params)

    # -- to servers

    def follow(self, event: ServerChanged) -> None:
        """Keep subscriptions under the server's key, and tell them to a server that lost them."""
        if event.change is ServerChange.RENAMED:
            self._subscriptions.rename(event.previous, event.server.key)
        elif event.change is ServerChange.REMOVED:
            self._subscriptions.forget(event.server.key)
        elif event.change is ServerChange.RENEWED and event.source is not None:
            self._tasks.spawn(self.restore_server_state(event.source))

    async def restore_server_state(self, upstream: Upstream) -> None:
        """Tell a server its log level and subscriptions: it forgets them with each connection."""
        if upstream.is_pooled:
            return  # what its callers want, each of their calls says
        if any(session.log_level for session in self._clients.sessions):
            await self._clients.set_log_level(upstream)
        if upstream.session is None and upstream.primary is not None:
            return  # nobody subscribes there
        wanted = self._wanted_uris(upstream)
        if upstream.is_stateless:  # all together are one request
            await asyncio.gather(*map(upstream.subscribe, wanted))
            return
        for uri in wanted:
            await upstream.subscribe(uri)

    def _wanted_uris(self, upstream: Upstream) -> list[str]:
        """The addresses to subscribe to on this link; notes their subscribers as its users."""
        wanted: list[str] = []
        for uri in self._subscriptions.of(upstream.key, upstream.session):
            names = self._subscriptions.names(upstream.key, uri)
            subscribers = [one for one in names if is_notified_by(upstream, one)]
            wanted += [uri] if subscribers else []
            for one in subscribers:
                assert isinstance(one, Session | Listen)
                if upstream.current is not None:
                    upstream.current.users.note(one.principal)
        return wanted

    def _sessions_of(self, upstream: Upstream) -> list[Session]:
        """The open sessions of the principal behind a link that can see its server."""
        if upstream.session is not None:
            assert isinstance(upstream.session, Session)
            return [upstream.session]
        link = upstream.current
        user = link.users.only if link is not None else None
        if user is None:
            return []
        return [
            session
            for session in self._clients.sessions
            if session.is_open
            and session.principal.is_same(user)
            and session.scope.could_see(upstream.key)
        ]
