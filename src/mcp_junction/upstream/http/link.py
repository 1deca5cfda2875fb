"""HttpLink: a server over streamable HTTP, in either era, with one POST per request.

What arrives on the stream of a call belongs to that call. In the handshake era a session that the
server no longer knows is opened again once, and the call that found out is sent again: it was
refused, so it has not run. The stateless era has no session, and no stream but those of requests;
each request says its version and method in headers, and closing its stream cancels it.
"""

from __future__ import annotations

import asyncio

from mcp_junction.protocol import encode
from mcp_junction.protocol.sse import reconnect_delay
from mcp_junction.protocol.versions import HANDSHAKE, STATELESS, era_of
from mcp_junction.tasks import resolve
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import QUEUED, Flight, new_flight
from mcp_junction.upstream.http.connection import HttpExchange
from mcp_junction.upstream.http.exchanges import OwnRequest, PostedCall, StandingStream
from mcp_junction.upstream.http.session import RemoteSession
from mcp_junction.upstream.outcome import LINK_FAILED, Outcome, OutcomeKind

_INITIALIZED_WAIT = 5.0


class HttpLink(RemoteSession):
    """One session with one remote server."""

    _initialize_params = b""
    _reopening: asyncio.Task[Outcome] | None = None
    _standing: StandingStream | None = None

    # -- life

    async def begin_session(self, protocol_version: str) -> None:
        self._version_header = b"mcp-protocol-version: %b\r\n" % protocol_version.encode()
        self.era = self.multiplexer.era = era_of(protocol_version)
        if self.era is HANDSHAKE:
            await self._send_initialized()

    async def _send_initialized(self) -> None:
        """Wait for the response: each POST may use another connection and overtake this one."""
        request = OwnRequest(
            self, self.build_post(encode.notification("notifications/initialized"))
        )
        self.pool.send(request)
        await asyncio.wait({request.status}, timeout=_INITIALIZED_WAIT)
        self._open_standing()

    def _open_standing(self, last_id: bytes | None = None) -> None:
        self._standing = StandingStream(self, last_id)
        self.pool.send(self._standing)

    def on_standing_ended(
        self, stream: HttpExchange, retry: int | None, last_id: bytes | None
    ) -> None:
        if stream is self._standing and not self.closed.done():
            self.tasks.spawn(self._reopen_standing(reconnect_delay(retry), last_id))

    async def _reopen_standing(self, delay: float, last_id: bytes | None) -> None:
        await self.clock.sleep(delay)
        self._open_standing(last_id)

    async def end(self, grace: float) -> None:
        """Delete the session, if there is one, and release the link."""
        if self.session_header and not self.closed.done():
            farewell = OwnRequest(self, self.build_delete())
            self.pool.send(farewell)
            await asyncio.wait({farewell.status}, timeout=max(grace, 0.5))
        await self.release("it was stopped")

    async def release(self, why: str) -> None:
        resolve(self.closed, None)
        self.pool.close()
        await self.multiplexer.close(why)
        await self.tasks.close()
        self._standing = None  # it refers to us: a reference cycle

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        if self._refuse(flight, self.closed.done()):
            return
        flight.link = self
        if flight.method == "initialize":
            self._initialize_params = flight.params
        frame = self.multiplexer.encode_request(flight)
        if self._reopening is not None and not self._reopening.done():
            self.tasks.spawn(self._post_when_open(flight, frame, is_resent=False))
        else:
            self._post(flight, frame)

    def _post(self, flight: Flight, frame: bytes, *, is_resent: bool = False) -> None:
        flight.carrier = posted = PostedCall(self, flight, frame, is_resent=is_resent)
        self.pool.send(posted)

    def cancel(self, flight: Flight, reason: str) -> None:
        if flight.state is QUEUED or self.era is STATELESS:
            self.multiplexer.forget(flight)  # not sent yet, or cancelled by the end of its stream
        else:
            self.multiplexer.cancel(flight, reason)
        if isinstance(flight.carrier, PostedCall):
            self.pool.drop(flight.carrier)

    def _write(self, frame: bytes) -> None:
        """Post a frame that has no answer; stateless servers take none."""
        if not self.closed.done() and self.era is HANDSHAKE:
            self.pool.send(OwnRequest(self, self.build_post(frame)))

    # -- a session that was lost

    def reopen_session(self, lost: bytes) -> None:
        if lost == self.session_header:  # else another exchange has found out before
            self.session_header = b""
            self._reopening = self.tasks.spawn(self._reopen())

    async def _reopen(self) -> Outcome:
        version, self._version_header = self._version_header, b""
        flight = new_flight("initialize")
        flight.params = self._initialize_params
        self._post(flight, self.multiplexer.encode_request(flight))
        outcome = await flight.future
        self._version_header = version
        if outcome.kind is OutcomeKind.RESULT:
            await self._send_initialized()
            self._listener.on_renewed()
        else:
            self.mark_lost(_not_reopened(outcome))
        return outcome

    def resend(self, flight: Flight, frame: bytes) -> None:
        if flight.future.done():
            return
        flight.state = QUEUED
        if flight.caller is not None:
            flight.caller.count_replay()
        self.tasks.spawn(self._post_when_open(flight, frame, is_resent=True))

    async def _post_when_open(self, flight: Flight, frame: bytes, *, is_resent: bool) -> None:
        if self._reopening is not None:
            outcome = await asyncio.shield(self._reopening)
            if outcome.kind is not OutcomeKind.RESULT and not flight.future.done():
                why = _not_reopened(outcome)
                self.multiplexer.fail(flight, outcomes.unavailable(self.server, why, LINK_FAILED))
        if not flight.future.done():
            self._post(flight, frame, is_resent=is_resent)


def _not_reopened(outcome: Outcome) -> str:
    return f"its session was lost and could not be opened again: {outcome.message}"
