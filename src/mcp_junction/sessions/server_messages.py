"""ServerMessages: hands what a server says of its own accord to the sessions that it belongs to.

A log message or a question that names no call reaches sessions of one principal only: the one that
alone has used the link it came on. Among several sessions of that principal a log message is told
to each that can see the server; a question is put to the only one, and refused when there are more:
the server would take the answer of the wrong window for its user's. What belongs to a call under
way was handed to that call before it comes here. Changed lists are not handled here.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from mcp_junction.protocol import encode, frames
from mcp_junction.protocol import log_levels as levels
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import LOG_MESSAGE, METHOD_NOT_FOUND
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, is_told_by
from mcp_junction.sessions.subscriptions import Subscriptions
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.server import Upstream

LOG: Final = "log"
QUESTION: Final = "question"


class ServerMessages:
    """Routes messages that belong to no call from servers to sessions."""

    def __init__(self, sessions: set[Session], subscriptions: Subscriptions) -> None:
        self._sessions = sessions
        self._subscriptions = subscriptions
        self.unattributed = {LOG: 0, QUESTION: 0}
        """How many were dropped or refused because nobody could know whose they are."""

    def count_unattributed(self, method: str) -> None:
        """Count a message that was dropped or refused, because its session is unknown."""
        self.unattributed[LOG if method == LOG_MESSAGE else QUESTION] += 1

    def log(self, upstream: Upstream, frame: Frame) -> None:
        """Tell a log message to the sessions of the only principal that has used the link."""
        rank = levels.level_rank(frame.params)
        message = encode.notification(frame.method, frame.params)
        for session in self._sessions_of(upstream):
            session.overhear(rank, message)

    async def ask(self, upstream: Upstream, frame: Frame) -> Outcome:
        """Put a question to the only session of the only principal that has used the link."""
        sessions = self._sessions_of(upstream)
        if len(sessions) != 1:
            self.count_unattributed(frame.method)
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {frame.method}")
        return await sessions[0].ask(frame.method, frame.params)

    def tell_updated(self, upstream: Upstream, frame: Frame) -> None:
        """Tell subscribers of a resource that it changed, by the address they know it by.

        Where several principals use the link they are told nothing but that address.
        """
        params = frames.members(frame.params)
        uri = frames.text(params.get("uri")) or ""
        link = upstream.current
        is_shared = link is None or link.users.only is None
        for subscriber, name in self._subscriptions.names(upstream.key, uri).items():
            assert isinstance(subscriber, Session | Listen)
            if not is_told_by(upstream, subscriber):
                continue
            if is_shared or name != uri:
                told = {} if is_shared else params
                subscriber.notify(frame.method, encode.dumps(told | {"uri": _quoted(name)}))
            else:
                subscriber.notify(frame.method, frame.params)

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
            for session in self._sessions
            if session.is_open
            and session.principal.is_same(user)
            and session.endpoint.admits_server(upstream.key)
        ]


def _quoted(text: str) -> Raw:
    return Raw(encode.dumps(text))
