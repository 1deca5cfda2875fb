"""Multiplexer: matches answers to flights on a link whose messages share one stream. No I/O.

It also attributes the server's notifications and requests to calls. MultiplexedLink is a Link with
such a table of flights; its subclasses do the I/O.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable

from msgspec import Raw

from mcp_junction.config.settings import DEFAULT_LIMITS, Limits
from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.lines import BOM, Overlong
from mcp_junction.protocol.requests import MAX_ANSWERS, read_answer, split_raw
from mcp_junction.protocol.versions import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOG_MESSAGE,
    METHOD_NOT_FOUND,
)
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import WRITTEN, Flight, FlightCaller, ParkingCaller, Withdrawable
from mcp_junction.upstream.link import Link, LinkListener, LinkUsers
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome

log = logging.getLogger("mcp_junction.upstream")

_JSONRPC = "2.0"
_BLANK = b" \t\r"
_MARGIN = BOM + _BLANK  # some runtimes put a byte order mark before every write
_MAX_QUESTIONS = 64
_MAX_STRAY = 4096
_MAX_WARNINGS = 20
_MARK = b'{"jsonrpc"'
_OPENINGS = frozenset(("initialize", "server/discover"))
_LARGE = 64 * 1024
_PEEKED = 64
_UNCLEAR = (
    "several clients use this connection, and which of them this is for is unknown; "
    'set "isolation" to "per-session" for a server that asks'
)


class Multiplexer:
    """The flights of one link, by wire id, and what the server asks while they last."""

    __slots__ = (
        "_has_mixed_lines", "_listener", "_pending", "_questions", "_write", "flights",
        "is_stateless", "noise", "server", "stray", "users", "warnings",
    )  # fmt: skip

    def __init__(self, server: str, write: Callable[[bytes], None], listener: LinkListener) -> None:
        self.server = server
        self._write = write
        self._listener = listener
        self.flights: dict[bytes, Flight] = {}
        self._questions = TaskScope(f"questions of {server}")
        self._pending: dict[bytes, Withdrawable] = {}
        self.users = LinkUsers()
        self.is_stateless = False
        """Whether the server is of the stateless era; so its results have an envelope."""
        self.noise = 0
        """How many lines were not frames."""
        self.stray = b""
        """The first of those lines, unless it is long."""
        self.warnings = 0
        """How many lines were worth a warning; only the first are logged, for they may flood."""
        self._has_mixed_lines = False  # whether a frame was seen behind other text

    def __len__(self) -> int:
        return len(self.flights)

    @property
    def calls(self) -> int:
        """How many flights are calls; the others are requests of our own."""
        return sum(flight.caller is not None for flight in self.flights.values())

    # -- outgoing

    def encode_request(self, flight: Flight) -> bytes:
        """Expect an answer to a flight from now on, and return its request as a frame."""
        caller = flight.caller
        if caller is not None and caller.principal is not self.users.only:
            self.users.note(caller.principal)
        self.flights[flight.wire_id] = flight
        frame = encode.request(flight.wire_id, flight.method, flight.params)
        flight.params = b""  # a large call is not to be held twice while it runs
        return frame

    def forget(self, flight: Flight) -> None:
        """Expect no answer any more."""
        self.flights.pop(flight.wire_id, None)

    def fail(self, flight: Flight, outcome: Outcome) -> None:
        """End a flight that gets no answer."""
        self.flights.pop(flight.wire_id, None)
        flight.end(outcome)

    def cancel(self, flight: Flight, reason: str) -> None:
        """Forget a flight, and tell the server if it was sent."""
        known = self.flights.pop(flight.wire_id, None) is not None
        if known and flight.state is WRITTEN:  # else the server does not know it
            params = b'{"requestId":%b,"reason":%b}' % (flight.wire_id, encode.dumps(reason))
            self._write(encode.notification("notifications/cancelled", params))

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        self._write(encode.notification(method, params))

    async def close(self, why: str) -> None:
        """End every flight and drop every question, because the link has ended."""
        flights, self.flights = self.flights, {}
        for flight in flights.values():
            flight.end(outcomes.link_lost(self.server, flight.delivery, why))
        await self._questions.close()
        self._pending.clear()
        self._write = _discard  # it was a method of the link: a reference cycle

    # -- incoming

    def receive(self, line: bytes | Overlong, on: Flight | None = None) -> None:
        """Handle one line from the server, whatever it holds.

        ``on`` is the flight on whose own stream it arrived, where each flight has one.
        """
        if isinstance(line, Overlong):
            self._handle_overlong(line)
            return
        if not line.startswith(
            b"{"
        ):  # noise can come in floods: it must not cost what a frame costs
            line = line.lstrip(_MARGIN)
            if line[:1] != b"{":
                if not self._handle_batch(line, on):
                    self._count_noise(line, "it is not an object")
                return
        answer = read_answer(line)
        if answer is not None:  # as nearly always
            flight = self.flights.pop(answer[0], None)
            if flight is not None:
                attempts, target = flight.attempts, flight.target
                flight.end(Outcome(RESULT, answer[1], None, attempts, target, self.is_stateless))
                return
        self._handle_frame(line, on)

    def _handle_frame(self, line: bytes, on: Flight | None) -> None:
        try:
            frame = frames.decode(line, exact=len(line) < _LARGE)
        except FrameError as error:
            if not self._fail_by_id(line, f"its answer is damaged: {error}"):
                self._count_noise(line, error)
            return
        if not frame.method:
            self._handle_answer(line, frame)
        elif frame.id:
            self._handle_request(frame, on)
        else:
            try:
                self._handle_notification(frame, on)
            except FrameError as error:  # its params are not an object
                self._count_noise(line, error)

    def _handle_batch(self, line: bytes, on: Flight | None) -> bool:
        """Handle several messages in one line, as servers of older versions write them.

        Returns whether it was a batch.
        """
        if line[:1] != b"[" or line[1:_PEEKED].lstrip(_BLANK)[:1] != b"{":
            return False  # "[12:00:01] ready", say
        try:
            texts = split_raw(line, MAX_ANSWERS)
        except FrameError as error:
            if error.code == INVALID_REQUEST:
                self._warn("server %r: a batch was not read: %s", self.server, error)
            return False
        for text in texts:
            if text[:1] == b"{":
                self.receive(text, on)
            else:
                self._count_noise(text, "it is not an object")
        return True

    def _handle_answer(self, line: bytes, frame: Frame) -> None:
        if frame.jsonrpc != _JSONRPC:  # a log record, say, that happens to have an id
            self._count_noise(line, "it does not say jsonrpc 2.0")
            return
        flight = self.flights.pop(frames.octets(frame.id), None)
        if flight is None:
            # Late, after a cancel or a timeout; or not the answer to any request of ours.
            log.debug("server %r answered a request that nobody waits for", self.server)
        elif frame.error:
            flight.end(outcomes.refused(frame.error, flight.failure))
        else:
            attempts, target = flight.attempts, flight.target
            flight.end(Outcome(RESULT, frame.result, None, attempts, target, self.is_stateless))

    def _handle_overlong(self, line: Overlong) -> None:
        limit = f"the limit of {line.limit} on a line (max_line_bytes)"
        what = f"its answer of {line.size} bytes is over {limit}"
        if not self._fail_by_id(line.head + line.tail, what):
            words = "server %r: a line of %d bytes is over %s, and was skipped"
            self._warn(words, self.server, line.size, limit)

    def _warn(self, words: str, *about: object) -> None:
        """Log a warning about a line, unless there were many on this link."""
        self.warnings += 1
        if self.warnings <= _MAX_WARNINGS:
            log.warning(words, *about)
        if self.warnings == _MAX_WARNINGS:
            log.warning("server %r: more lines like this are not told of", self.server)

    def _count_noise(self, line: bytes, why: FrameError | str) -> None:
        self.noise += 1
        if not self.stray and len(line) <= _MAX_STRAY:
            self.stray = line
        if not self._has_mixed_lines and self.flights and line.find(_MARK) > 0:
            # It is not read as a frame: programs also write about frames, or quote others.
            self._has_mixed_lines = True
            words = "server %r writes other text to stdout in a line with a frame, which is lost"
            log.warning(words, self.server)
        log.debug("server %r: a line on stdout is not a frame: %s", self.server, why)

    def _fail_by_id(self, data: bytes, why: str) -> bool:
        """Fail the flight of an answer that cannot be used; False when its id is not found."""
        wire_id = frames.recover_id(data) if frames.has_jsonrpc(data) else None
        if wire_id is not None and frames.has_method(data):
            # A request with an id that the server has chosen: it is the server that waits.
            refusal = encode.error_object(INVALID_REQUEST, "this request could not be read")
            self._write(encode.error(wire_id, refusal))
            return False
        flight = self.flights.pop(wire_id, None) if wire_id is not None else None
        if flight is None:
            return False
        message = f"server {self.server!r}: {why}"
        flight.end(outcomes.failed(INTERNAL_ERROR, message, Delivery.EXECUTED, server=self.server))
        return True

    def _handle_notification(self, frame: Frame, on: Flight | None) -> None:
        if frame.method == "notifications/progress":
            self._pass_progress(frame)
        elif frame.method == "notifications/cancelled":
            self._withdraw_question(frame)
        elif frame.method == LOG_MESSAGE:
            self._pass_log(frame, on)
        else:
            self._listener.on_notification(frame)

    def _pass_log(self, frame: Frame, on: Flight | None) -> None:
        caller, _ = self._find_caller(on)
        if caller is not None:
            caller.log(frame.params)
        elif self.users.only is None:
            self._listener.on_unattributed(frame.method)
        else:
            self._listener.on_notification(frame)

    def _pass_progress(self, frame: Frame) -> None:
        params = frames.members(frame.params)
        token = params.get("progressToken")
        flight = self.flights.get(frames.octets(token)) if token else None
        if flight is not None and flight.caller is not None:
            flight.caller.progress(params)

    def _handle_request(self, frame: Frame, on: Flight | None) -> None:
        frame_id = bytes(frame.id)
        if frame.method in _OPENINGS and frame_id in self.flights:
            why = "it sends back what it is sent: it is no MCP server"
            self.fail(self.flights[frame_id], outcomes.failed(INVALID_REQUEST, why))
        elif self.is_stateless:
            why = f"{frame.method}: a server of this version asks nothing"
            self._write(outcomes.failed(INVALID_REQUEST, why).frame(frame_id))
        elif frame.method == "ping":
            self._write(encode.result(frame_id, b"{}"))
        elif len(self._questions) >= _MAX_QUESTIONS:
            busy = outcomes.failed(INTERNAL_ERROR, "too many requests of this server are open")
            self._write(busy.frame(frame_id))
        else:
            self._ask(frame_id, frame, *self._find_caller(on))

    def _ask(
        self, frame_id: bytes, frame: Frame, caller: FlightCaller | None, is_certain: bool
    ) -> None:
        """Pass a server's request on to the caller it is for."""
        if isinstance(caller, ParkingCaller):

            def answer(outcome: Outcome) -> None:
                self._pending.pop(frame_id, None)
                self._write(outcome.frame(frame_id))

            parked = caller.park(frame.method, frame.params, answer)
            if parked is not None:
                self._pending[frame_id] = parked
            return
        relayed = self._questions.spawn(self._relay(frame_id, frame, caller, is_certain))
        self._pending[frame_id] = relayed
        relayed.add_done_callback(lambda _: self._pending.pop(frame_id, None))

    async def _relay(
        self, frame_id: bytes, frame: Frame, caller: FlightCaller | None, is_certain: bool
    ) -> None:
        if caller is not None:
            answer = await caller.ask(frame.method, frame.params)
        elif is_certain:
            answer = await self._listener.on_request(frame)
        else:
            self._listener.on_unattributed(frame.method)
            answer = self._refuse_unclear(frame.method)
        self._write(answer.frame(frame_id))

    def _refuse_unclear(self, method: str) -> Outcome:
        """Refuse a server's request when it cannot be known which client it is for."""
        if self.users.only is None and not self.users.has_several:
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {method}")
        return outcomes.failed(INVALID_REQUEST, _UNCLEAR)

    def _withdraw_question(self, frame: Frame) -> None:
        """Cancel a request of the server's that it no longer wants answered."""
        request_id = frames.members(frame.params).get("requestId")
        question = self._pending.pop(bytes(request_id), None) if request_id is not None else None
        if question is not None:
            question.cancel()

    def _find_caller(self, on: Flight | None) -> tuple[FlightCaller | None, bool]:
        """Find the caller that a message is for, and whether that is certain.

        A message on a flight's own stream is for that flight. On a shared stream it may concern any
        call ever made there, so it is certain only while one principal alone has used the link.
        Then it is for the one session that has calls under way; for nobody, when there are none. A
        call with an unanswered question waits, so a further question belongs to another call; if
        there is no other, it is that call's: a call may ask several things at once.
        """
        if on is not None and on.caller is not None:
            return on.caller, True
        if self.users.only is None:
            return None, False
        found: FlightCaller | None = None
        waiting: list[FlightCaller] = []
        for flight in self.flights.values():
            caller = flight.caller
            if caller is None:
                continue
            # By getattr, since an isinstance check of a protocol is slow; a flood comes here a lot.
            if getattr(caller, "is_asked", False):
                waiting.append(caller)
            elif found is not None and found.session is not caller.session:
                return None, False
            else:
                found = caller
        if found is None and waiting:
            return (waiting[0], True) if len(waiting) == 1 else (None, False)
        return found, True


def _discard(frame: bytes) -> None:
    """Discard a frame, because the link has ended."""


class MultiplexedLink(Link):
    """A Link over a Multiplexer; subclasses write its frames and feed it what arrives."""

    def __init__(
        self, server: str, listener: LinkListener, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(server)
        self.multiplexer = Multiplexer(server, self._write, listener)
        self.users = self.multiplexer.users
        self._limits = limits

    def rename(self, server: str) -> None:
        super().rename(server)
        self.multiplexer.server = server

    @abstractmethod
    def _write(self, frame: bytes) -> None:
        """Write a frame that expects no answer."""

    @property
    def is_busy(self) -> bool:
        return len(self.multiplexer) > 0

    @property
    def calls(self) -> int:
        return self.multiplexer.calls

    def cancel(self, flight: Flight, reason: str) -> None:
        self.multiplexer.cancel(flight, reason)

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        if not self.multiplexer.is_stateless:
            self.multiplexer.notify(method, params)
