"""StatelessFront: requests of the stateless era over HTTP, each an exchange of its own.

The answer is one write of JSON, or a stream when the call speaks before it ends. There are no
sessions, and nothing can be taken up again: closing the stream is how a client cancels.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.listener.acceptance import find_repeated
from mcp_junction.listener.http.exchange import AsgiExchange
from mcp_junction.listener.http.host import Send
from mcp_junction.listener.http.replies import HttpPost, HttpReply, done, respond
from mcp_junction.listener.http.streams import accepts_stream
from mcp_junction.listener.replies import Headers, Reply, refusal, unsupported
from mcp_junction.listener.stateless import StatelessDispatcher
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.requests import ClientRequest
from mcp_junction.protocol.versions import HEADER_MISMATCH, INVALID_REQUEST, STATELESS_VERSIONS
from mcp_junction.tasks import TaskScope

LISTEN: Final = "subscriptions/listen"
_ROUTING: Final = frozenset((b"mcp-protocol-version", b"mcp-method", b"mcp-name"))
_PARAM: Final = b"mcp-param-"


class StatelessFront:
    """The part of the listener for clients that open no session."""

    def __init__(self, dispatcher: StatelessDispatcher, tasks: TaskScope) -> None:
        self._dispatcher = dispatcher
        self._tasks = tasks

    def answer(self, post: HttpPost, frame: Frame) -> Awaitable[None]:
        """Answer one frame; what is left to be done for it is returned."""
        given, headers, send, exchange = post.given, post.headers, post.send, post.exchange
        if not frame.id or not frame.method:
            return self._unanswered(headers, frame, send)
        if len(given) != len(headers) or frame.method == LISTEN:
            early = _refused_early(given, headers, frame)
            if early is not None:
                return respond(send, early)
        return self.begin(
            frame, post.principal, post.endpoint, headers, send, exchange, post.carrying
        )

    def begin(
        self,
        frame: Frame,
        principal: Principal,
        endpoint: Endpoint,
        headers: dict[bytes, bytes],
        send: Send,
        exchange: AsgiExchange | None,
        carrying: Headers | None = None,
    ) -> Awaitable[None]:
        """Begin to answer a request; what is left to be done for it is returned."""
        accept = headers.get(b"accept")
        reply = HttpReply(send, self._tasks, accept, exchange, None, carrying, self, principal)
        if exchange is not None:
            if exchange.is_gone:  # it left while its token was verified
                return done()
            exchange.when_gone = reply.leave
        frame_id: bytes = frame.id if type(frame) is ClientRequest else frames.octets(frame.id)
        answer = self._dispatcher.answer
        return answer(principal, endpoint, frame, frame_id, reply, reply, headers) or done()

    def usage_of(self, principal: Principal) -> QuotaUsage:
        return self._dispatcher.usage_of(principal)

    def cancel(self, reply: HttpReply) -> None:
        """Cancel what runs for a client that has closed its stream."""
        running = self._dispatcher.running.get(reply)
        if running is not None:
            self._dispatcher.cancel(running, "the client closed the stream")

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


def _refused_early(
    given: Sequence[tuple[bytes, bytes]], headers: dict[bytes, bytes], frame: Frame
) -> Reply | None:
    """What is wrong with a request before it is even read."""
    if len(given) != len(headers):
        twice = find_repeated(given, _ROUTING, _PARAM)
        if twice is not None:
            words = f"the {twice.decode()} header appears more than once"
            return refusal(bytes(frame.id), HEADER_MISMATCH, words)
    if frame.method == LISTEN and not accepts_stream(headers.get(b"accept")):
        words = "the answer to this is a stream: accept text/event-stream"
        return refusal(bytes(frame.id), INVALID_REQUEST, words)._replace(status=406)
    return None
