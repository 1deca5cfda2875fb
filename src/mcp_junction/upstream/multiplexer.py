"""Multiplexer: matches answers to flights on a link whose messages share one stream. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.lines import BOM, Overlong
from mcp_junction.protocol.versions import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOG_MESSAGE,
    METHOD_NOT_FOUND,
    STATELESS,
    Era,
)
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import WRITTEN, Flight, FlightCaller, ParkingCaller, Withdrawable
from mcp_junction.upstream.link import LinkListener, LinkUsers
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome

log = logging.getLogger("mcp_junction.upstream")

_JSONRPC = "2.0"
_BLANK = b" \t\r"
_MARGIN = BOM + _BLANK  # some runtimes put a byte order mark before every write
_MAX_QUESTIONS = 64
_MAX_STRAY = 4096
_MARK = b'{"jsonrpc"'
_OPENINGS = frozenset(("initialize", "server/discover"))
_LARGE = 64 * 1024
_PEEKED = 64
_UNCLEAR = (
    "several clients use this connection, and which of them this is for is unknown; "
    'set "isolation" to "per-session" for a server that asks'
)


class Multiplexer:
    """The table of flights of one link."""

    __slots__ = (
        "_ear",
        "_is_mixed",
        "_open",
        "_questions",
        "_server",
        "_write",
        "era",
        "flights",
        "noise",
        "stray",
        "users",
    )

    def __init__(self, server: str, write: Callable[[bytes], None], ear: LinkListener) -> None:
        self._server = server
        self._write = write
        self._ear = ear
        self.flights: dict[bytes, Flight] = {}
        self._questions = TaskScope(f"questions of {server}")
        self._open: dict[bytes, Withdrawable] = {}
        self.users = LinkUsers()
        self.era = Era.HANDSHAKE
        self.noise = 0
        self._is_mixed = False  # whether a frame was seen behind other text
        self.stray = b""
        """The first of that, as far as it is worth showing."""

    def __len__(self) -> int:
        return len(self.flights)

    @property
    def calls(self) -> int:
        """How many of them are for somebody; the rest are questions of our own."""
        return sum(flight.passenger is not None for flight in self.flights.values())

    # -- outgoing

    def register(self, flight: Flight) -> None:
        """Expect an answer; writing the request is someone else's part."""
        passenger = flight.passenger
        if passenger is not None and passenger.principal is not self.users.only:
            self.users.note(passenger.principal)
        self.flights[flight.wire_id] = flight

    def forget(self, flight: Flight) -> None:
        """Expect no answer any more."""
        self.flights.pop(flight.wire_id, None)

    def drop(self, flight: Flight, outcome: Outcome) -> None:
        """No answer will come: end the flight."""
        self.flights.pop(flight.wire_id, None)
        flight.end(outcome)

    def send(self, flight: Flight) -> None:
        self._write(self.taken(flight))

    def taken(self, flight: Flight) -> bytes:
        """Expect an answer to what the caller is about to write."""
        passenger = flight.passenger
        if passenger is not None and passenger.principal is not self.users.only:
            self.users.note(passenger.principal)
        self.flights[flight.wire_id] = flight
        flight.state = WRITTEN
        frame = encode.request(flight.wire_id, flight.method, flight.params)
        flight.params = b""  # a large call is not to be held twice while it runs
        return frame

    def cancel(self, flight: Flight, reason: str) -> None:
        known = self.flights.pop(flight.wire_id, None) is not None
        if known and flight.state is WRITTEN:  # else the server has not heard of it
            params = b'{"requestId":%b,"reason":%b}' % (flight.wire_id, encode.dumps(reason))
            self._write(encode.notification("notifications/cancelled", params))

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        self._write(encode.notification(method, params))

    async def close(self, why: str) -> None:
        """The link is gone: every flight ends, every question is dropped."""
        flights, self.flights = self.flights, {}
        for flight in flights.values():
            flight.end(outcomes.link_lost(self._server, flight.delivery, why))
        await self._questions.close()
        self._open.clear()
        self._write = _discard  # it was a method of the link: a reference cycle

    # -- incoming

    def receive(self, line: bytes | Overlong, on: Flight | None = None) -> None:
        """Take one line from the server, whatever it holds.

        ``on`` is the flight whose own stream it came on, where streams are apart.
        """
        if isinstance(line, Overlong):
            self._overlong(line)
            return
        if line[:1] != b"{":  # noise can come in floods: it must not cost what a frame costs
            line = line.lstrip(_MARGIN)
            if line[:1] != b"{":
                if not self._batch(line, on):
                    self._noise(line, "it is not an object")
                return
        try:
            frame = frames.decode(line, exact=len(line) < _LARGE)
        except FrameError as error:
            self._undecodable(line, error)
            return
        if not frame.method:
            self._answered(line, frame)
        elif frame.id:
            self._question(frame, on)
        else:
            try:
                self._notified(frame, on)
            except FrameError as error:  # its params are no object
                self._noise(line, error)

    def _batch(self, line: bytes, on: Flight | None) -> bool:
        """Take several messages in one line, as servers of older versions write them."""
        if line[:1] != b"[" or line[1:_PEEKED].lstrip(_BLANK)[:1] != b"{":
            return False  # "[12:00:01] ready", say
        # Imported where it is used: hardly a server does this.
        from mcp_junction.protocol.requests import MAX_ANSWERS, split_raw

        try:
            found = split_raw(line, MAX_ANSWERS)
        except FrameError as error:
            if error.code == INVALID_REQUEST:
                log.warning("server %r: a batch was not read: %s", self._server, error)
            return False
        for text in found:
            if text[:1] == b"{":
                self.receive(text, on)
            else:
                self._noise(text, "it is not an object")
        return True

    def _answered(self, line: bytes, frame: Frame) -> None:
        if frame.jsonrpc != _JSONRPC:  # a log record, say, that has an id, too
            self._noise(line, "it does not say jsonrpc 2.0")
            return
        flight = self.flights.pop(frames.octets(frame.id), None)
        if flight is None:
            # Late, after a cancel or a timeout; or the answer to nothing we asked.
            log.debug("server %r answered nothing that is waited for", self._server)
        elif frame.error:
            flight.end(outcomes.refused(frame.error))
        else:
            flight.end(Outcome(RESULT, frame.result))

    def _overlong(self, line: Overlong) -> None:
        limit = f"the limit of {line.limit} on a line (max_line_bytes)"
        what = f"its answer of {line.size} bytes is over {limit}"
        if not self._spoiled(line.head + line.tail, what):
            words = "server %r: a line of %d bytes is over %s, and was skipped"
            log.warning(words, self._server, line.size, limit)

    def _undecodable(self, line: bytes, error: FrameError) -> None:
        if not self._spoiled(line, f"its answer is damaged: {error}"):
            self._noise(line, error)

    def _noise(self, line: bytes, why: FrameError | str) -> None:
        self.noise += 1
        if not self.stray and len(line) <= _MAX_STRAY:
            self.stray = line
        if not self._is_mixed and self.flights and line.find(_MARK) > 0:
            # It is not taken for one: programs also write of frames, and of what is none of theirs.
            self._is_mixed = True
            words = "server %r writes other text to stdout in a line with a frame, which is lost"
            log.warning(words, self._server)
        log.debug("server %r: a line on stdout is not a frame: %s", self._server, why)

    def _spoiled(self, data: bytes, why: str) -> bool:
        """Fail the flight that a useless answer belongs to, if that can be told."""
        wire_id = frames.recover_id(data) if frames.has_jsonrpc(data) else None
        if wire_id is not None and frames.has_method(data):
            # A question, with an id of the server's own choosing: it is the server that waits.
            refusal = encode.error_object(INVALID_REQUEST, "this request could not be read")
            self._write(encode.error(wire_id, refusal))
            return False
        flight = self.flights.pop(wire_id, None) if wire_id is not None else None
        if flight is None:
            return False
        message = f"server {self._server!r}: {why}"
        flight.end(outcomes.failed(INTERNAL_ERROR, message, Delivery.EXECUTED, server=self._server))
        return True

    def _notified(self, frame: Frame, on: Flight | None) -> None:
        if frame.method == "notifications/progress":
            self._progressed(frame)
        elif frame.method == "notifications/cancelled":
            self._withdrawn(frame)
        elif frame.method == LOG_MESSAGE:
            self._logged(frame, on)
        else:
            self._ear.heard(frame)

    def _logged(self, frame: Frame, on: Flight | None) -> None:
        passenger, _ = self._whose(on)
        if passenger is not None:
            passenger.log(frame.params)
        elif self.users.only is None:
            self._ear.unattributed(frame.method)
        else:
            self._ear.heard(frame)

    def _progressed(self, frame: Frame) -> None:
        params = frames.members(frame.params)
        token = params.get("progressToken")
        flight = self.flights.get(frames.octets(token)) if token else None
        if flight is not None and flight.passenger is not None:
            flight.passenger.progress(params)

    def _question(self, frame: Frame, on: Flight | None) -> None:
        frame_id = bytes(frame.id)
        if frame.method in _OPENINGS and frame_id in self.flights:
            why = "it sends back what it is sent: it is no MCP server"
            self.drop(self.flights[frame_id], outcomes.failed(INVALID_REQUEST, why))
        elif self.era is STATELESS:
            why = f"{frame.method}: a server of this version asks nothing"
            self._write(outcomes.failed(INVALID_REQUEST, why).frame(frame_id))
        elif frame.method == "ping":
            self._write(encode.result(frame_id, b"{}"))
        elif len(self._questions) >= _MAX_QUESTIONS:
            busy = outcomes.failed(INTERNAL_ERROR, "too many requests of this server are open")
            self._write(busy.frame(frame_id))
        else:
            self._put(frame_id, frame, *self._whose(on))

    def _put(
        self, frame_id: bytes, frame: Frame, passenger: FlightCaller | None, is_clear: bool
    ) -> None:
        """Put a question to whom it is for."""
        if isinstance(passenger, ParkingCaller):

            def answer(outcome: Outcome) -> None:
                self._open.pop(frame_id, None)
                self._write(outcome.frame(frame_id))

            parked = passenger.park(frame.method, frame.params, answer)
            if parked is not None:
                self._open[frame_id] = parked
            return
        relayed = self._questions.spawn(self._relay(frame_id, frame, passenger, is_clear))
        self._open[frame_id] = relayed
        relayed.add_done_callback(lambda _: self._open.pop(frame_id, None))

    async def _relay(
        self, frame_id: bytes, frame: Frame, passenger: FlightCaller | None, is_clear: bool
    ) -> None:
        if passenger is not None:
            answer = await passenger.ask(frame.method, frame.params)
        elif is_clear:
            answer = await self._ear.asked(frame)
        else:
            self._ear.unattributed(frame.method)
            answer = self._unclear(frame.method)
        self._write(answer.frame(frame_id))

    def _unclear(self, method: str) -> Outcome:
        """Refuse a server's question that cannot be put to any client."""
        if self.users.only is None and not self.users.has_several:
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {method}")
        return outcomes.failed(INVALID_REQUEST, _UNCLEAR)

    def _withdrawn(self, frame: Frame) -> None:
        """The server no longer wants an answer to a question of its own."""
        request_id = frames.members(frame.params).get("requestId")
        question = self._open.pop(bytes(request_id), None) if request_id is not None else None
        if question is not None:
            question.cancel()

    def _whose(self, on: Flight | None) -> tuple[FlightCaller | None, bool]:
        """Whom a message is for, and whether that is clear.

        On a stream of its own it is the flight's. On a shared one it may be about any call that was
        ever made there: it is clear only while one principal alone has used the link. Then it is
        for the session that has calls under way, if it is one; nobody, when there are none. A call
        that has been asked and not yet answered waits for that, so the next question is another's,
        unless there is no other: a call may ask several things at once.
        """
        if on is not None and on.passenger is not None:
            return on.passenger, True
        if self.users.only is None:
            return None, False
        found: FlightCaller | None = None
        waiting: list[FlightCaller] = []
        for flight in self.flights.values():
            passenger = flight.passenger
            if passenger is None:
                continue
            if getattr(
                passenger, "is_asked", False
            ):  # a ParkingCaller's; asked of every line of a flood
                waiting.append(passenger)
            elif found is not None and found.session is not passenger.session:
                return None, False
            else:
                found = passenger
        if found is None and waiting:
            return (waiting[0], True) if len(waiting) == 1 else (None, False)
        return found, True


def _discard(frame: bytes) -> None:
    """Discard a frame, because the link is gone."""
