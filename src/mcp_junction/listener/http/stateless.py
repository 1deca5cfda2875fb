"""StatelessFront: requests of the stateless era over HTTP, each an exchange of its own.

The answer is one write of JSON, or a stream when the call speaks before it ends. There are no
sessions, and nothing can be taken up again: closing the stream is how a client cancels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

import msgspec

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.listener.header_check import said_twice
from mcp_junction.listener.http.exchange import AsgiExchange
from mcp_junction.listener.http.streams import EventStream, Send, accepts_stream
from mcp_junction.listener.replies import Reply, refusal, unsupported
from mcp_junction.listener.stateless import Rest, StatelessDispatcher
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.requests import ClientRequest
from mcp_junction.protocol.versions import HEADER_MISMATCH, INVALID_REQUEST, STATELESS_VERSIONS
from mcp_junction.tasks import TaskScope

_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_LISTEN: Final = "subscriptions/listen"


class StatelessFront:
    """The part of the listener for clients that open no session."""

    def __init__(self, dispatcher: StatelessDispatcher, tasks: TaskScope) -> None:
        self._dispatcher = dispatcher
        self._tasks = tasks

    def post(
        self,
        given: list[tuple[bytes, bytes]],
        headers: dict[bytes, bytes],
        frame: Frame,
        send: Send,
        exchange: AsgiExchange | None,
        principal: Principal,
        endpoint: Endpoint,
    ) -> Awaitable[None]:
        """Take one frame; what is left to be done for its answer is returned."""
        if not frame.id or not frame.method:
            return self._unanswered(headers, frame, send)
        if len(given) != len(headers) or frame.method == _LISTEN:
            early = _refused_early(given, headers, frame)
            if early is not None:
                return respond(send, early)
        flow = StatelessReply(send, self._tasks, headers, self._dispatcher, exchange, principal)
        if exchange is not None:
            exchange.when_gone = flow.gone
        frame_id: bytes = frame.id if type(frame) is ClientRequest else frames.octets(frame.id)
        return (
            self._dispatcher.answer(principal, endpoint, frame, frame_id, flow, flow, headers)
            or _done()
        )

    async def _unanswered(self, headers: dict[bytes, bytes], frame: Frame, send: Send) -> None:
        """A notification is taken and has no effect: the era knows none over HTTP."""
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        if not frame.method:
            words = "the body must be a single request or notification"
            await respond(send, refusal(b"null", INVALID_REQUEST, words))
        elif version not in STATELESS_VERSIONS:
            await respond(send, unsupported(b"null", version))
        else:
            await respond(send, Reply(b"", 202))


class StatelessReply(msgspec.Struct, eq=False):
    """The way back for one request: nothing until the call speaks, then a stream.

    It is the key of what runs for the request, too.
    """

    _send: Send
    _tasks: TaskScope
    _headers: dict[bytes, bytes]
    _dispatcher: StatelessDispatcher
    _exchange: AsgiExchange | None
    _principal: Principal
    _attaching: asyncio.Task[asyncio.Future[None]] | None = None
    stream: EventStream | None = None

    def gone(self) -> None:
        """The client has closed the stream, or it is over."""
        running = self._dispatcher.running.get(self)
        if running is not None:
            self._dispatcher.cancel(running, "the client closed the stream")
        if self.stream is not None:
            self.stream.detach()

    def send(self, frame: bytes) -> None:
        self._begin().send(frame)

    def offer(self, frame: bytes) -> None:
        if accepts_stream(self._headers.get(b"accept")):
            self._begin().offer(frame)

    def _begin(self) -> EventStream:
        if self.stream is None:
            usage = self._dispatcher.usage_of(self._principal)
            self.stream = EventStream(0, self._tasks, usage, resumable=False)
            attach = self.stream.attach(self._send, after=0, prime=False)
            self._attaching = self._tasks.spawn(attach)
        return self.stream

    def end(self, frame: bytes) -> Rest:
        exchange = self._exchange
        if exchange is None or self.stream is not None:
            return self.end_with(b"", Reply(frame))
        exchange.when_gone = None  # it holds the flow, which holds it
        exchange.respond(_OK, frame)
        return None

    def end_with(self, frame_id: bytes, reply: Reply | None) -> Rest:
        if self.stream is not None:
            return self._finish(self.stream, reply)
        if self._exchange is not None:
            self._exchange.when_gone = None
        # Where it was cancelled, whoever asked is gone.
        return respond(self._send, reply or Reply(b"", 202))

    async def _finish(self, stream: EventStream, reply: Reply | None) -> None:
        """Send the answer as the last event, and end the stream."""
        assert self._attaching is not None
        if reply is not None:
            stream.send(reply.frame)
        stream.end()
        await (await self._attaching)
        if self._exchange is not None:
            self._exchange.when_gone = None  # it holds the flow, which holds it


def _refused_early(
    given: list[tuple[bytes, bytes]], headers: dict[bytes, bytes], frame: Frame
) -> Reply | None:
    """What is wrong with a request before it is even read."""
    if len(given) != len(headers):
        twice = said_twice(given)
        if twice is not None:
            words = f"the {twice.decode()} header appears more than once"
            return refusal(bytes(frame.id), HEADER_MISMATCH, words)
    if frame.method == _LISTEN and not accepts_stream(headers.get(b"accept")):
        words = "the answer to this is a stream: accept text/event-stream"
        return refusal(bytes(frame.id), INVALID_REQUEST, words)._replace(status=406)
    return None


async def _done() -> None:
    """Nothing is left to be done."""


async def respond(send: Send, reply: Reply) -> None:
    headers = [(b"content-length", b"%d" % len(reply.frame))]
    if reply.frame:
        headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.frame})
