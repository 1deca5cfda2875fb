"""SessionRegistry: holds the sessions of HTTP clients, and ends those that are idle.

A session belongs to the principal and the endpoint it was opened with; to anyone else it does not
exist. Idle ones expire, and so do those whose client has gone, with the calls it left. Each
principal has a limit: when it opens one more session, its own oldest ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from mcp_junction.calls.call import Channel
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.listener.http.replies import HttpReply
from mcp_junction.listener.http.streams import KEPT_BYTES, EventStream
from mcp_junction.policy.principal import Principal
from mcp_junction.resilience.clock import Clock
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope

SWEEP_EVERY: Final = 10.0
KEPT_STREAMS: Final = 16
PRIMED_FROM: Final = "2025-11-25"
_STANDING: Final = 0


class HttpSession:
    """What the listener keeps about a session, beside the session itself."""

    __slots__ = (
        "_delivered", "_next_stream", "checked_at", "endpoint", "id", "last_used", "session",
        "streams",
    )  # fmt: skip

    def __init__(self, session_id: str, session: Session, endpoint: Endpoint, now: float) -> None:
        self.id = session_id
        self.session = session
        self.endpoint = endpoint
        self.last_used = now
        self.checked_at = now
        """When it was last checked for whether it is in use."""
        self.streams: dict[int, EventStream] | None = None
        self._next_stream = _STANDING + 1
        self._delivered: set[int] = set()  # the streams that were delivered at the last sweep

    def new_stream(self, tasks: TaskScope) -> EventStream:
        """Make a stream for one call; drop old ones that have ended."""
        streams = self._streams()
        self._trim_delivered(streams)
        while len(streams) > KEPT_STREAMS:
            ended = next((n for n, s in streams.items() if s.ended and n != _STANDING), None)
            if ended is None:
                break
            del streams[ended]
        stream = streams[self._next_stream] = EventStream(
            self._next_stream, tasks, self.session.usage
        )
        self._next_stream += 1
        return stream

    @staticmethod
    def _trim_delivered(streams: dict[int, EventStream]) -> None:
        """Drop the oldest delivered streams until those that are left fit into KEPT_BYTES."""
        delivered = [number for number, stream in streams.items() if stream.is_delivered]
        kept = sum(streams[number].kept_bytes for number in delivered)
        for number in delivered:
            if kept <= KEPT_BYTES:
                break
            kept -= streams.pop(number).kept_bytes

    def forget_delivered(self) -> None:
        """Drop the streams that had been delivered when this was called before.

        A client that has lost the end of its answer on the way comes back within seconds.
        """
        if self.streams:
            for number in self._delivered:
                self.streams.pop(number, None)
            self._delivered = {n for n, stream in self.streams.items() if stream.is_delivered}

    def standing(self, tasks: TaskScope) -> EventStream:
        """Return the stream for messages that belong to no call."""
        streams = self._streams()
        if _STANDING not in streams:
            streams[_STANDING] = EventStream(_STANDING, tasks, self.session.usage)
        return streams[_STANDING]

    def find_stream(self, last_event_id: bytes) -> tuple[EventStream, int] | None:
        """Find the stream that an event id belongs to, and the event's number in it."""
        stream, _, number = last_event_id.partition(b"_")
        if not (stream.isdigit() and number.isdigit() and self.streams):
            return None
        found = self.streams.get(int(stream))
        return (found, int(number)) if found is not None else None

    @property
    def wants_priming(self) -> bool:
        """Whether its streams begin with an event that has an id and nothing else."""
        return (self.session.protocol_version or "") >= PRIMED_FROM

    @property
    def is_idle(self) -> bool:
        """Whether no reader is attached; a call whose client has gone does not count."""
        if any(stream.is_attached for stream in (self.streams or {}).values()):
            return False
        return not any(_has_reader(call.channel) for call in self.session.calls.values())

    def close(self, reason: str) -> None:
        self.session.close(reason)
        for stream in (self.streams or {}).values():
            stream.end()
        # They refer to us: without this a reference cycle is left for the collector.
        self.session.send = self.session.offer = discard_frame

    def _streams(self) -> dict[int, EventStream]:
        if self.streams is None:
            self.streams = {}
        return self.streams


def _has_reader(channel: Channel) -> bool:
    return not isinstance(channel, HttpReply) or channel.has_reader


def discard_frame(frame: bytes) -> None:
    """Drop what is sent to a client that has no session yet, or has gone."""


class SessionRegistry:
    """Sessions by their id."""

    def __init__(
        self, clock: Clock, idle_seconds: float, closed: Callable[[Session], None]
    ) -> None:
        self._clock = clock
        self._now = clock.now
        self._idle_seconds = idle_seconds
        self._closed = closed
        self._sessions: dict[str, HttpSession] = {}
        self._replica = secrets.token_hex(3)

    def __len__(self) -> int:
        return len(self._sessions)

    def new_id(self) -> str:
        return f"{self._replica}.{secrets.token_urlsafe(18)}"

    def add(self, session_id: str, session: Session, endpoint: Endpoint) -> HttpSession:
        """Add a new session; at the principal's limit its oldest session ends."""
        found = HttpSession(session_id, session, endpoint, self._now())
        self._sessions[session_id] = found
        session.id = session_id
        oldest = session.usage.sessions.add(found, self._is_in_use)
        if oldest is not None:
            self.remove(oldest, "its principal has opened too many sessions after it")
        return found

    def _is_in_use(self, found: HttpSession) -> bool:
        """Whether a session was used since the last check, or somebody waits for it."""
        was_used = found.last_used > found.checked_at
        found.checked_at = self._now()
        return was_used or not found.is_idle

    def find(self, session_id: str, principal: Principal, endpoint: Endpoint) -> HttpSession | None:
        """Return the session, if it is this principal's at this endpoint."""
        found = self._sessions.get(session_id)
        if found is None:
            return None
        if found.endpoint is not endpoint and found.endpoint != endpoint:
            return None
        if found.session.principal is not principal and found.session.principal != principal:
            return None
        found.last_used = self._now()
        return found

    def remove(self, found: HttpSession, reason: str) -> None:
        if self._sessions.pop(found.id, None) is not None:
            found.session.usage.sessions.discard(found)
            found.close(reason)
            self._closed(found.session)

    def discard(self, session: Session) -> None:
        """End a session that was never added, because it was refused."""
        self._closed(session)

    def expel(self, is_allowed: Callable[[Principal], bool]) -> None:
        """End the sessions and streams of principals that are no longer allowed."""
        self.end(lambda session: not is_allowed(session.principal), "the key was revoked")

    def end(self, is_over: Callable[[Session], bool], reason: str) -> None:
        """End the sessions for which ``is_over`` is true, with their streams."""
        for found in list(self._sessions.values()):
            if is_over(found.session):
                self.remove(found, reason)

    def cut_standing(self, is_over: Callable[[Session], bool]) -> None:
        """End the responses that listen for messages of no call; the sessions go on."""
        for found in self._sessions.values():
            standing = (found.streams or {}).get(_STANDING)
            if standing is not None and is_over(found.session):
                standing.cut()

    def sweep(self) -> None:
        """End sessions that have been idle for too long, and drop delivered streams."""
        oldest = self._now() - self._idle_seconds
        for found in list(self._sessions.values()):
            found.forget_delivered()
            if found.last_used < oldest and found.is_idle:
                self.remove(found, "the session has expired")

    async def run(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_EVERY)
            self.sweep()

    def close(self) -> None:
        for found in list(self._sessions.values()):
            self.remove(found, "Junction is ending")
