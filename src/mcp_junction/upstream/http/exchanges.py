"""The exchanges of an HttpLink: a posted call, a request without an answer, the standing stream.

Each gets the response by callbacks of its connection, and reports to its link. Bodies are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcp_junction.errors import FrameError
from mcp_junction.oauth.discovery import BearerChallenge, read_challenge
from mcp_junction.protocol.lines import MERGE_EVERY, merge_small
from mcp_junction.protocol.sse import EventReader, reconnect_delay
from mcp_junction.protocol.versions import INTERNAL_ERROR, STATELESS
from mcp_junction.resilience.failures import REFUSED_BEFORE_RUNNING, Failure
from mcp_junction.tasks import resolve
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import QUEUED, WRITTEN, Flight
from mcp_junction.upstream.http.connection import HttpExchange, is_overdue
from mcp_junction.upstream.http.refusals import (
    UNAUTHENTICATED,
    is_other_era,
    is_unknown_session,
    read_failure,
    read_retry_after,
)
from mcp_junction.upstream.outcome import Delivery
from mcp_junction.upstream.tokens import NO_TOKEN, AccessToken, TokenSource

if TYPE_CHECKING:
    from mcp_junction.upstream.http.link import HttpLink

log = logging.getLogger("mcp_junction.upstream")

_MAX_RETRY_AFTER = 30.0
_MAX_RESUMES = 20
_OPENINGS = ("initialize", "server/discover")
_NO_HEADERS: Mapping[bytes, bytes] = {}
LOST_SESSION, BUSY, TOKEN, SCOPES = 1, 2, 4, 8
"""The causes for which a link itself sends a call again, each once: TOKEN after a 401, SCOPES after
a 403, when the credential was renewed meanwhile."""


class EventExchange(HttpExchange):
    """An exchange whose response may be a stream of events, each of which carries a message."""

    __slots__ = ("_events", "_last_id", "_link", "_retry", "_session")

    def __init__(self, link: HttpLink, payload: bytes) -> None:
        super().__init__(payload)
        self._link = link
        self._session = link.session_header
        self._events: EventReader | None = None
        self._last_id: bytes | None = None
        self._retry: int | None = None

    def _begin_events(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self._events = EventReader(self._link.limit) if status == 200 and is_stream else None

    def _read_events(self, reader: EventReader, chunk: bytes, flight: Flight | None) -> None:
        """Pass on the messages that a chunk completes. Raises FrameError."""
        for event in reader.feed(chunk):
            self._last_id = event.id or self._last_id
            self._retry = event.retry if event.retry is not None else self._retry
            if event.data:
                self._link.multiplexer.receive(event.data, flight)


class PostedCall(EventExchange):
    """A call on the wire: its answer is the body, or arrives in a stream of events."""

    __slots__ = (
        "_body", "_causes", "_frame", "_headers", "_resumes", "_size", "_status", "_token",
        "flight",
    )  # fmt: skip

    def __init__(self, link: HttpLink, flight: Flight, frame: bytes, causes: int = 0) -> None:
        source: TokenSource | None = flight.tokens
        token = NO_TOKEN if source is None else source.current
        super().__init__(link, link.build_post(frame, link.call_headers(flight), token.line))
        self.flight = flight
        self._frame = frame
        self._token = token
        self._causes = causes
        self._status = 0
        self._headers = _NO_HEADERS
        self._body: list[bytes] = []
        self._size = 0
        self._resumes = 0

    # -- callbacks of the connection

    @property
    def is_over(self) -> bool:
        return self.flight.future.done()

    @property
    def is_parked(self) -> bool:
        # By getattr, since an isinstance check of a protocol is slow; there may be thousands.
        return getattr(self.flight.caller, "is_asked", False)

    def on_written(self) -> None:
        if self.flight.state is QUEUED:
            self.flight.state = WRITTEN

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        if self.flight.caller is None:
            self._link.refuses_credentials = status in UNAUTHENTICATED
        self._body, self._size = [], 0
        if status == 200:  # accepted: the request is not needed again, however long it runs
            self.payload = self._frame = b""
            self._token.is_used = True
            self._headers = _NO_HEADERS
        if self.flight.method == "initialize" and b"mcp-session-id" in headers:
            self._link.set_session(headers[b"mcp-session-id"])
        self._begin_events(status, headers)

    def on_data(self, chunk: bytes) -> None:
        if self._events is not None:
            try:
                self._read_events(self._events, chunk, self.flight)
            except FrameError as error:
                self._reject_answer(str(error))
            if self.flight.future.done():  # the server need not end the stream
                self.flight = self._link.ended_flight
            return
        self._size += len(chunk)
        if self._size > self._link.limit:
            self._reject_answer(f"its answer is over the limit of {self._link.limit} bytes")
        else:
            self._body.append(chunk)
            if not len(self._body) % MERGE_EVERY:
                merge_small(self._body)

    def on_complete(self) -> None:
        if self.flight.future.done():
            return
        if self._events is not None:
            self._resume("it ended the stream without an answer")
        elif self._resumes:  # a POST that may have run is not made again
            self._fail(f"its stream broke off, and it answered HTTP {self._status} to a resume")
        elif self._is_session_lost() and not self._causes & LOST_SESSION:
            self._link.reopen_session(self._session)
            if self._can_resend:
                self._link.resend(self.flight, self._frame, self._causes | LOST_SESSION)
            else:
                self._read_answer(b"".join(self._body))
        elif self._status in UNAUTHENTICATED and self._wants_token():
            self.flight.state = QUEUED  # refused, so it has not run
            self._link.tasks.spawn(self._renew_token(self._token))
        elif self._status == 429 and not self._causes & BUSY and self._can_resend:
            self._resend_later()
        else:
            body = b"".join(self._body)
            if self._is_of_other_era(body):
                self.flight.state = QUEUED  # refused, so it has not run
                self._fail("it speaks another version of the protocol than it did")
            else:
                self._read_answer(body)

    def on_lost(self, why: str) -> None:
        if self.flight.future.done():
            return
        if self._events is not None and self._last_id is not None:
            self._resume(why)
        else:
            self._fail(why)

    # -- what a response means

    @property
    def _can_resend(self) -> bool:
        caller = self.flight.caller
        return caller is None or caller.can_replay

    def _is_session_lost(self) -> bool:
        """Whether the server refused the call because it does not know our session.

        Such a server should answer 404. Some answer 400, with a known message.
        """
        if self._status == 400 and self._session:
            return is_unknown_session(b"".join(self._body), self.flight.wire_id)
        return self._status == 404 and bool(self._session)

    @property
    def _challenge(self) -> BearerChallenge | None:
        return read_challenge(self._headers.get(b"www-authenticate"))

    def _wants_token(self) -> bool:
        """Whether the server refused the call for its token, before it ran."""
        if self.flight.tokens is None:
            return False
        challenge = self._challenge
        if self._status == 403:
            return challenge is not None and challenge.wants_scope
        return challenge is not None or bool(self._token.line)

    async def _renew_token(self, token: AccessToken) -> None:
        """Send the call once more with another token, when there is one; else end it."""
        source: TokenSource = self.flight.tokens
        cause = SCOPES if self._status == 403 else TOKEN
        is_again = bool(self._causes & cause)
        outcome = await source.renew(token, self._challenge, is_again=is_again)
        if self.flight.future.done():
            return
        if outcome is None and self._can_resend and not is_again:
            self._link.resend(self.flight, self._frame, self._causes | cause)
        elif outcome is None:
            renewed = outcomes.token_renewed(self._link.server)
            self._link.multiplexer.fail(self.flight, renewed)
        else:
            self._link.sign_out(self.flight, outcome)

    def _is_of_other_era(self, body: bytes) -> bool:
        """Whether a refusal shows a server of another era than the one that greeted us."""
        if self._status not in (400, 404, 405) or self.flight.method in _OPENINGS:
            return False
        is_stateless = self._link.era is STATELESS
        if is_stateless and self._status == 405:
            return True
        return is_other_era(body, self.flight.wire_id, has_sessions=is_stateless)

    def _read_answer(self, body: bytes) -> None:
        if body.lstrip()[:1] == b"{" and self._status != 429:  # ours says how long to wait
            self.flight.failure = self._failure
            self._link.multiplexer.receive(body, self.flight)
            if self.flight.future.done():
                return
        words, asked = f"it answered HTTP {self._status}", read_retry_after(self._headers)
        if asked is not None and self._status >= 400:
            words += f" and wants to be left alone for {asked:.0f} s"
        if self.flight.method == "initialize":
            self._link.refused_status = self._status
        if self._status in UNAUTHENTICATED:
            words += "; check the headers or credentials given for it"
        elif 300 <= self._status < 400:
            words += ", a redirect, and redirects are not followed"
        self._reject_answer(words + self._link.describe_body(body))

    @property
    def _failure(self) -> Failure | None:
        """What the status says; None when it says nothing of a failure."""
        if self._status < 400:
            return None
        return read_failure(self._status, self._headers, is_session_lost=self._is_session_lost())

    def _resume(self, why: str) -> None:
        """Resume a stream that broke off before the answer, if the server can do that."""
        cannot = self._last_id is None or self._link.era is STATELESS
        if cannot or self._resumes >= _MAX_RESUMES or self._link.closed.done():
            self._fail(why)
            return
        self._resumes += 1
        seconds = min(reconnect_delay(self._retry), _MAX_RETRY_AFTER)
        self._link.tasks.spawn(self._resume_after(seconds))

    async def _resume_after(self, seconds: float) -> None:
        await self._link.clock.sleep(seconds)
        if not self.flight.future.done():
            self.payload = self._link.build_get(self._last_id)
            self._link.pool.send(self)

    def _resend_later(self) -> None:
        """Obey HTTP 429 once: the call was refused, so it has not run."""
        asked = read_retry_after(self._headers)
        seconds = 1.0 if asked is None else asked
        if seconds > _MAX_RETRY_AFTER:
            self._read_answer(b"".join(self._body))
        else:
            self.flight.state = QUEUED  # refused, so it has not run
            self._link.tasks.spawn(self._resend_after(seconds))

    async def _resend_after(self, seconds: float) -> None:
        await self._link.clock.sleep(seconds)
        self._link.resend(self.flight, self._frame, self._causes | BUSY)

    def _fail(self, why: str) -> None:
        """End the flight without an answer; the link is lost when not even sending worked."""
        if self.flight.state is QUEUED:
            self._link.mark_lost(why)
        self._link.lose_flight(self.flight, why)

    def _reject_answer(self, why: str) -> None:
        """End the flight, because the response cannot be used."""
        server, failure = self._link.server, self._failure
        delivery = Delivery.UNKNOWN if self._status >= 400 else Delivery.EXECUTED
        told: dict[str, int] = {}
        if failure is not None:
            told["http_status"] = self._status
            is_challenged = self._status in UNAUTHENTICATED and self._challenge is not None
            if failure.kind in REFUSED_BEFORE_RUNNING or is_challenged:
                delivery = Delivery.NOT_SENT
            if failure.retry_after is not None:
                told["retry_after_ms"] = math.ceil(failure.retry_after * 1000)
        outcome = outcomes.failed(
            INTERNAL_ERROR,
            f"server {server!r}: {why}",
            delivery,
            failure=failure,
            server=server,
            **told,
        )
        self._link.multiplexer.fail(self.flight, outcome)
        self._link.pool.drop(self)  # the rest of the response is not needed


class OwnRequest(HttpExchange):
    """A request that has no answer but its status: a notification, an answer, the last DELETE."""

    __slots__ = ("_frame", "_link", "_written_at", "status")

    def __init__(self, link: HttpLink, payload: bytes, frame: bytes = b"") -> None:
        """``frame`` is what it posts, if that may be sent again with another token."""
        super().__init__(payload)
        self._link = link
        self._frame = frame
        self._written_at = math.inf
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The HTTP status of the response; 0 when there is none."""

    @property
    def is_over(self) -> bool:
        return self.status.done() or is_overdue(self._written_at)

    def on_written(self) -> None:
        self._written_at = asyncio.get_running_loop().time()

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status >= 400:
            log.debug("server %r answered a notification with HTTP %d", self._link.server, status)
        if status == 401 and self._frame and self._link.tokens is not None:
            challenge = read_challenge(headers.get(b"www-authenticate"))
            self._link.tasks.spawn(self._link.write_again(self._frame, challenge))
        resolve(self.status, status)

    def on_lost(self, why: str) -> None:
        resolve(self.status, 0)


class StandingStream(EventExchange):
    """The stream for messages that belong to no call; a server need not have one."""

    __slots__ = ("_was_open", "_was_written")

    def __init__(self, link: HttpLink, last_id: bytes | None) -> None:
        super().__init__(link, link.build_get(last_id))
        self._last_id = last_id
        self._was_open = self._was_written = False

    def on_written(self) -> None:
        self._was_written = True

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._begin_events(status, headers)
        if self._events is not None:
            self._was_open = True
            self._link.streamed_session = self._session
        elif (
            status in (400, 404, 405)
            and self._session
            and self._link.streamed_session == self._session
        ):
            self._link.reopen_session(self._session)

    def on_data(self, chunk: bytes) -> None:
        if self._events is None:
            return
        try:
            self._read_events(self._events, chunk, None)
        except FrameError as error:
            log.warning("server %r: %s", self._link.server, error)
            self._last_id = None  # else the same event would come again
            self._link.pool.drop(self)
            self.on_complete()

    def on_complete(self) -> None:
        if self._was_open:
            self._link.on_standing_ended(self, self._retry, self._last_id)

    def on_lost(self, why: str) -> None:
        if self._was_written:
            self.on_complete()
        else:
            self._link.mark_lost(why)
