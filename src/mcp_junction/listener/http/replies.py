"""HttpReply: the answer to one POST: plain JSON when the answer is all, a stream when it is not.

The reply of a session can be taken up again by its client, so the session keeps its stream. A
stateless reply cannot: closing the stream is how its client cancels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.listener.http.exchange import STATUS, AsgiExchange
from mcp_junction.listener.http.host import Send
from mcp_junction.listener.http.streams import EventStream, accepts_stream
from mcp_junction.listener.replies import Headers, Reply
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import INVALID_REQUEST, SERVER_UNAVAILABLE
from mcp_junction.tasks import TaskScope

_JSON: Final = b"content-type: application/json"
_OK: Final = STATUS[200] + _JSON
_CORRELATED: Final = b"\r\nx-correlation-id: "
_OK_CORRELATED: Final = _OK + _CORRELATED


class StreamKeeper(Protocol):
    """The session that keeps a reply's stream for a client that comes back."""

    @property
    def wants_priming(self) -> bool: ...

    def new_stream(self, tasks: TaskScope) -> EventStream: ...


class RequestFront(Protocol):
    """Where the requests of stateless clients run, by their replies."""

    def usage_of(self, principal: Principal) -> QuotaUsage: ...

    def cancel(self, reply: HttpReply) -> None: ...


class HttpPost(msgspec.Struct, frozen=True):
    """A POST: who sent it to which endpoint, its headers, and where the response goes."""

    principal: Principal
    endpoint: Endpoint
    given: Sequence[tuple[bytes, bytes]]
    headers: dict[bytes, bytes]
    send: Send
    exchange: AsgiExchange | None = None
    carrying: Headers | None = None
    """The headers, where one of them carries something for us."""


class HttpReply(msgspec.Struct, eq=False):
    """The reply to one POST. It is the key of what runs for the request, too."""

    _send: Send
    _tasks: TaskScope
    _accept: bytes | None
    _exchange: AsgiExchange | None
    _session: StreamKeeper | None = None
    """The session that keeps its stream; None for a stateless request."""
    headers: Headers | None = None
    """The headers of the request, where one of them carries something for us."""
    _front: RequestFront | None = None
    """Where the request of a stateless client runs; None for one of a session."""
    _principal: Principal | None = None
    """Whose request that is."""
    correlation_id: str = ""
    """That of the call that it answers, if it is one."""
    _attaching: asyncio.Task[asyncio.Future[None]] | None = None
    stream: EventStream | None = None

    @property
    def has_reader(self) -> bool:
        """Whether the client that sent the POST is still there, as far as we can know."""
        if self.stream is not None:
            return self.stream.is_attached
        return self._exchange is None or not self._exchange.is_gone

    def send(self, frame: bytes) -> None:
        self._begin().send(frame)

    def offer(self, frame: bytes) -> None:
        if accepts_stream(self._accept):
            self._begin().offer(frame)

    def _begin(self) -> EventStream:
        """Make a stream of this reply: something is sent before the answer."""
        if self.stream is None:
            session = self._session
            if session is not None:
                self.stream = session.new_stream(self._tasks)
            else:
                self.stream = EventStream(0, self._tasks, self._usage, resumable=False)
            self._attaching = self._tasks.spawn(self._attach(self.stream))
        return self.stream

    @property
    def _usage(self) -> QuotaUsage:
        """What the stream of a stateless request counts for."""
        if self._front is None or self._principal is None:
            return QuotaUsage()
        return self._front.usage_of(self._principal)

    def leave(self) -> None:
        """Cancel the request of a stateless client that has closed its stream."""
        if self._front is not None:
            self._front.cancel(self)
        if self.stream is not None:
            self.stream.detach()

    async def _attach(self, stream: EventStream) -> asyncio.Future[None]:
        """Begin the response; the stream of a session waits for a client that has left."""
        session, exchange = self._session, self._exchange
        is_primed = session is not None and session.wants_priming
        ended = await stream.attach(
            self._send, after=0, prime=is_primed, headers=self._correlation()
        )
        if session is not None and exchange is not None:
            exchange.when_left = partial(stream.release, ended)
            if exchange.is_gone:
                stream.release(ended)
        return ended

    def end(self, frame: bytes) -> Coroutine[Any, Any, None] | None:
        """Answer with a result, in one write where that can be; what is left to do is returned."""
        exchange = self._exchange
        if exchange is None or self.stream is not None:
            return self.end_with(b"", Reply(frame))
        if exchange.when_gone is not None:
            exchange.when_gone = None  # it holds the reply, which holds it
        correlation_id = self.correlation_id
        exchange.respond(_OK_CORRELATED if correlation_id else _OK, correlation_id, frame)
        return None

    def end_with(self, frame_id: bytes, reply: Reply | None) -> Coroutine[Any, Any, None] | None:
        """Answer with anything else; None where the call was cancelled, and nobody waits."""
        if self.stream is not None:
            return self.finish(*(() if reply is None else (reply.frame,)))
        if self._exchange is not None:
            self._exchange.when_gone = None
        if reply is None:
            reply = Reply(b"", 202)
        elif self._session is not None:
            reply = Reply(reply.frame)  # in the handshake era an error is an answer like any other
        if self._exchange is None or reply.retry_after or not reply.frame:
            return respond(self._send, reply, self._correlation())
        named = _CORRELATED if self.correlation_id else b""
        head = b"".join((STATUS[reply.status], _JSON, named))
        self._exchange.respond(head, self.correlation_id, reply.frame)
        return None

    def _correlation(self) -> list[tuple[bytes, bytes]]:
        """The header that names the call, if this answers one."""
        if not self.correlation_id:
            return []
        return [(b"x-correlation-id", self.correlation_id.encode())]

    async def finish(self, *answers: bytes) -> None:
        """Send the answer as the last event (those to a batch as the last ones), and end."""
        stream = self.stream
        assert stream is not None
        assert self._attaching is not None
        if self._exchange is not None:
            self._exchange.when_gone = None  # the call that it would cancel has ended
        for answer in answers:
            stream.send(answer)
        stream.end()
        await (await self._attaching)


async def respond(send: Send, reply: Reply, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Write a whole response by ASGI, with ``more`` headers."""
    headers = [(b"content-length", b"%d" % len(reply.frame)), *more]
    if reply.frame:
        headers.append((b"content-type", b"application/json"))
    if reply.retry_after:
        headers.append((b"retry-after", b"%d" % reply.retry_after))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.frame})


async def done() -> None:
    """Nothing is left to be done."""


class HttpRefusal(NamedTuple):
    """The HTTP status and message of a refused request."""

    status: int
    message: str


async def refuse(
    send: Send, status: int, message: str, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Answer with an HTTP status and an error that belongs to no request."""
    code = SERVER_UNAVAILABLE if status >= 500 else INVALID_REQUEST
    body = encode.error(b"null", encode.error_object(code, message))
    await respond(send, Reply(body, status), extra or ())
