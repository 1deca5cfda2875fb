"""The exchanges of an HttpLink: a posted call, a request without an answer, the standing stream.

Each is told by its connection what comes back, and reports to its link. Bodies are bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcp_junction.errors import FrameError
from mcp_junction.protocol.lines import MERGE_EVERY, merge_small
from mcp_junction.protocol.sse import EventReader, reconnect_delay
from mcp_junction.protocol.versions import INTERNAL_ERROR, STATELESS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import QUEUED, WRITTEN, Flight
from mcp_junction.upstream.http.refusals import (
    UNAUTHENTICATED,
    is_other_era,
    is_unknown_session,
)
from mcp_junction.upstream.outcome import Delivery

if TYPE_CHECKING:
    from mcp_junction.upstream.http.link import HttpLink

log = logging.getLogger("mcp_junction.upstream")

_MAX_RETRY_AFTER = 30.0
_MAX_RESUMES = 20
_OPENINGS = ("initialize", "server/discover")
_NONE: Mapping[bytes, bytes] = {}


class PostedCall:
    """A call on the wire: its answer is the body, or comes in a stream of events."""

    __slots__ = (
        "_again", "_body", "_events", "_headers", "_last_id", "_link", "_resumes", "_retry",
        "_session", "_size", "_status", "flight", "frame", "payload",
    )  # fmt: skip

    def __init__(
        self, link: HttpLink, flight: Flight, frame: bytes, *, again: bool = False
    ) -> None:
        self._link = link
        self.flight = flight
        self.frame = frame
        self.payload = link.post(frame, link.headers_of(flight))
        self._session = link.session
        self._again = again
        self._status = 0
        self._headers = _NONE
        self._body: list[bytes] = []
        self._size = 0
        self._events: EventReader | None = None
        self._last_id: bytes | None = None
        self._retry: int | None = None
        self._resumes = 0

    # -- told by the connection

    def written(self) -> None:
        if self.flight.state is QUEUED:
            self.flight.state = WRITTEN

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        if self.flight.passenger is None:
            self._link.refuses_credentials = status in UNAUTHENTICATED
        self._body, self._size, self._events = [], 0, None
        if status == 200:  # it was taken: what it was is not needed again, however long it lasts
            self.payload = self.frame = b""
            self._headers = _NONE
        if self.flight.method == "initialize" and b"mcp-session-id" in headers:
            self._link.session_given(headers[b"mcp-session-id"])
        if status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._events = EventReader(self._link.limit)

    @property
    def is_over(self) -> bool:
        return self.flight.future.done()

    @property
    def is_parked(self) -> bool:
        return getattr(self.flight.passenger, "is_asked", False)  # a Parker's; asked of thousands

    def data(self, chunk: bytes) -> None:
        if self._events is not None:
            self._streamed(chunk)
            return
        self._size += len(chunk)
        if self._size > self._link.limit:
            self._spoiled(f"its answer is over the limit of {self._link.limit} bytes")
        else:
            self._body.append(chunk)
            if not len(self._body) % MERGE_EVERY:
                merge_small(self._body)

    def done(self) -> None:
        if self.flight.future.done():
            return
        if self._events is not None:
            self._resume("it ended the stream without an answer")
        elif self._resumes:  # a POST that may have run is not made again
            self._failed(f"its stream broke off, and it answered HTTP {self._status} to a resume")
        elif self._is_forgotten() and not self._again:
            self._link.session_lost(self._session)
            self._link.post_again(self)
        elif self._status == 429 and not self._again:
            self._later()
        elif self._size <= self._link.limit:
            body = b"".join(self._body)
            if self._is_of_another_era(body):
                self.flight.state = QUEUED  # refused, so it has not run
                self._failed("it speaks another version of the protocol than it did")
            else:
                self._finished(body)

    def lost(self, why: str) -> None:
        if self.flight.future.done():
            return
        if self._events is not None and self._last_id is not None:
            self._resume(why)
        else:
            self._failed(why)

    # -- what it means

    def _is_forgotten(self) -> bool:
        """Whether the server refused the call because it does not know our session.

        Such a server should say 404. Some say 400, in words that are known.
        """
        if not self._session or self._status not in (400, 404):
            return False
        if self._status == 404:
            return True
        return is_unknown_session(b"".join(self._body), self.flight.wire_id)

    def _is_of_another_era(self, body: bytes) -> bool:
        """Whether a refusal shows that another server is there than the one that greeted us."""
        if self._status not in (400, 404, 405) or self.flight.method in _OPENINGS:
            return False
        is_stateless = self._link.era is STATELESS
        if is_stateless and self._status == 405:
            return True
        return is_other_era(body, self.flight.wire_id, has_sessions=is_stateless)

    def _finished(self, body: bytes) -> None:
        if body.lstrip()[:1] == b"{":
            self._link.receive(body, self.flight)
            if self.flight.future.done():
                return
        words = f"it answered HTTP {self._status}"
        if self.flight.method == "initialize":
            self._link.refused_with = self._status
        if self._status in UNAUTHENTICATED:
            words += "; check the headers or credentials given for it"
        elif 300 <= self._status < 400:
            words += ", a redirect, and redirects are not followed"
        self._spoiled(words + self._link.describe(body))

    def _streamed(self, chunk: bytes) -> None:
        assert self._events is not None
        try:
            events = self._events.feed(chunk)
        except FrameError as error:
            self._spoiled(str(error))
            return
        for event in events:
            self._last_id = event.id or self._last_id
            self._retry = event.retry if event.retry is not None else self._retry
            if event.data:
                self._link.receive(event.data, self.flight)

    def _resume(self, why: str) -> None:
        """The stream broke off before the answer: take it up where it was, if the server can."""
        is_lost = self._last_id is None or self._link.era is STATELESS
        if is_lost or self._resumes >= _MAX_RESUMES or self._link.closed.done():
            self._failed(why)
            return
        self._resumes += 1
        seconds = min(reconnect_delay(self._retry), _MAX_RETRY_AFTER)
        self._link.tasks.spawn(self._resume_later(seconds))

    async def _resume_later(self, seconds: float) -> None:
        await self._link.clock.sleep(seconds)
        if not self.flight.future.done():
            self.payload = self._link.get(self._last_id)
            self._link.pool.send(self)

    def _later(self) -> None:
        """Told to come back later: obey, once. It was refused, so it has not run."""
        after = self._headers.get(b"retry-after", b"1")
        seconds = float(after) if after.isdigit() else 1.0
        if seconds > _MAX_RETRY_AFTER:
            self._spoiled(f"it answered HTTP 429 and wants {seconds:.0f} s of peace")
        else:
            self._link.tasks.spawn(self._post_later(seconds))

    async def _post_later(self, seconds: float) -> None:
        await self._link.clock.sleep(seconds)
        self._link.post_again(self)

    def _failed(self, why: str) -> None:
        flight = self.flight
        if flight.state is QUEUED:
            outcome = outcomes.unavailable(self._link.server, why)
            self._link.unreachable(why)
        else:
            outcome = outcomes.link_lost(self._link.server, flight.delivery, why)
        self._link.exchange.drop(flight, outcome)

    def _spoiled(self, why: str) -> None:
        server = self._link.server
        delivery = Delivery.UNKNOWN if self._status >= 400 else Delivery.EXECUTED
        if self._status == 429 or (self._status == 404 and self._session):
            delivery = Delivery.NOT_SENT  # refused before it ran
        status = {"http_status": self._status} if self._status >= 400 else {}
        outcome = outcomes.failed(
            INTERNAL_ERROR, f"server {server!r}: {why}", delivery, server=server, **status
        )
        self._link.exchange.drop(self.flight, outcome)
        self._link.pool.drop(self)  # whatever else it would send


class OwnRequest:
    """Something posted that has no answer but a status: a notification, an answer, a farewell."""

    __slots__ = ("_link", "ended", "payload")

    def __init__(self, link: HttpLink, payload: bytes) -> None:
        self._link = link
        self.payload = payload
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def written(self) -> None:
        pass

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status >= 400:
            log.debug("server %r answered a notification with HTTP %d", self._link.server, status)
        if not self.ended.done():
            self.ended.set_result(status)

    def data(self, chunk: bytes) -> None:
        pass

    def done(self) -> None:
        pass

    def lost(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(0)


class StandingStream:
    """The stream for what belongs to no call; a server need not have one."""

    is_over = False

    __slots__ = ("_events", "_link", "_session", "_written", "last_id", "payload", "retry",
                 "was_open")  # fmt: skip

    def __init__(self, link: HttpLink, last_id: bytes | None) -> None:
        self._link = link
        self.last_id = last_id
        self.payload = link.get(last_id)
        self.retry: int | None = None
        """Milliseconds that the server asked to wait before the stream is opened again."""
        self.was_open = False
        self._session = link.session
        self._written = False
        self._events: EventReader | None = None

    def written(self) -> None:
        self._written = True

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._events = EventReader(self._link.limit)
            self.was_open = True
            self._link.streamed = self._session
        elif status in (400, 404, 405) and self._session and self._link.streamed == self._session:
            self._link.session_lost(self._session)

    def data(self, chunk: bytes) -> None:
        if self._events is None:
            return
        try:
            events = self._events.feed(chunk)
        except FrameError as error:
            log.warning("server %r: %s", self._link.server, error)
            self.last_id = None  # else the same event would come again
            self._link.pool.drop(self)
            self._link.standing_ended(self)
            return
        for event in events:
            self.last_id = event.id or self.last_id
            self.retry = event.retry if event.retry is not None else self.retry
            if event.data:
                self._link.receive(event.data, None)

    def done(self) -> None:
        self._link.standing_ended(self)

    def lost(self, why: str) -> None:
        if self._written:
            self._link.standing_ended(self)
        else:
            self._link.unreachable(why)
