"""Replies: how a request is answered, in either era and on any transport.

A dispatcher writes its answer to the ReplyChannel of the request: what the call says before it
ends, then a result, or a Reply. A Reply has the HTTP status that goes with it in the stateless era;
in the handshake era the status is always 200.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Call, Carried, Channel
from mcp_junction.calls.methods import READ
from mcp_junction.errors import FrameError
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.correlation import new_correlation_id
from mcp_junction.protocol.envelope import ResultEnvelope, has_no_envelope, to_stateless_result
from mcp_junction.protocol.versions import (
    APPROVAL_NEEDED,
    CIRCUIT_OPEN,
    DENIED,
    HEADER_MISMATCH,
    IDEMPOTENCY_CONFLICT,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
)
from mcp_junction.upstream.outcome import CANCELLED, ERROR, SUSPENDED, Delivery, Outcome

HTTP_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
_OWN_STATUS: Final = {
    RATE_LIMITED: 429,
    DENIED: 403,
    APPROVAL_NEEDED: 403,
    CIRCUIT_OPEN: 503,
    IDEMPOTENCY_CONFLICT: 409,
}
"""The status of errors of ours, for calls that were not sent. For others it stays 200: to a client
that is a gateway, 429 says that nothing has run. So does a server's own error of such a code."""
_NOT_SENT: Final = Delivery.NOT_SENT
_WAITING: Final = frozenset((429, 503))
"""The statuses that say when to try again."""
_LONGEST_WAIT: Final = 24 * 3600.0
_UNANSWERABLE: Final = b"null"
_join: Final = b"".join  # ``frames.octets``, for the result of every call

Headers = Mapping[bytes, bytes]

Accept = Callable[[dict[str, Raw], Headers | None], Carried]
"""Takes out of a request what it carries for us (``acceptance.py``)."""

Rest = Coroutine[Any, Any, None] | None
"""The coroutine that finishes an answer; None where it is complete."""


class Reply(NamedTuple):
    """An answer, and the HTTP status that goes with it."""

    frame: bytes
    status: int = 200
    state: bytes = b""
    """What the client is to come back with, if it is asked something; as JSON."""
    retry_after: int = 0
    """Seconds after which the client may try again; 0 says nothing of it."""


class ReplyChannel(Channel, Protocol):
    """Where one request is answered: messages before the answer, then the answer."""

    @property
    def headers(self) -> Headers | None:
        """The headers of the request, where one of them carries something for us."""
        ...

    correlation_id: str
    """The correlation id of the call that it answers; empty where none is told."""

    def end(self, frame: bytes) -> Rest:
        """Answer with a result, as nearly all are."""
        ...

    def end_with(self, frame_id: bytes, reply: Reply | None) -> Rest:
        """Answer with anything else; None where nobody waits for an answer."""
        ...


class PipeReplies:
    """The answers to all requests of a client with a single channel."""

    headers = None

    def __init__(self, channel: Channel) -> None:
        self.send, self.offer, self.end = channel.send, channel.offer, channel.send
        self.correlation_id = ""

    def end_with(self, frame_id: bytes, reply: Reply | None) -> None:
        if reply is not None:
            self.send(reply.frame)


class CollectedReply:
    """Keeps the answer to one request, for who writes it: it is one of a batch, say."""

    __slots__ = ("answer", "correlation_id", "headers", "offer", "send")

    def __init__(self, channel: Channel, headers: Headers | None = None) -> None:
        self.send, self.offer, self.headers = channel.send, channel.offer, headers
        self.correlation_id = ""
        self.answer: bytes | None = None

    def end(self, frame: bytes) -> None:
        self.answer = frame

    def end_with(self, frame_id: bytes, reply: Reply | None) -> None:
        self.answer = reply.frame if reply is not None else None


def finish(
    channel: ReplyChannel, frame_id: bytes, found: Reply | Coroutine[Any, Any, Reply]
) -> Rest:
    """Answer with what was found, or will be."""
    if isinstance(found, Reply):
        return channel.end_with(frame_id, found)
    return _finish_later(channel, frame_id, found)


async def _finish_later(
    channel: ReplyChannel, frame_id: bytes, coming: Coroutine[Any, Any, Reply]
) -> None:
    rest = channel.end_with(frame_id, await coming)
    if rest is not None:
        await rest


def take_over(call: Call, carried: Carried, quotas: Quotas, channel: ReplyChannel) -> None:
    """Give a call what its request carried for us, and its answer the correlation id."""
    if carried is NOTHING_CARRIED:  # as nearly all do
        call.own_correlation_id = channel.correlation_id = new_correlation_id()
        return
    call.carried, call.timeout = carried, carried.timeout
    if call.user is not call.caller.principal:
        call.usage = quotas.of(call.user)
    channel.correlation_id = call.correlation_id


def refuse_call(
    channel: ReplyChannel, frame_id: bytes, code: int, message: str, carried: Carried | None
) -> Rest:
    """Answer a request that cannot become a call; ``carried`` is None where nothing is told."""
    data = None
    if carried is not None:
        channel.correlation_id = carried.correlation_id or new_correlation_id()
        data = {"correlation_id": channel.correlation_id}
    return channel.end_with(frame_id, refusal(frame_id, code, message, data))


# -- making them


class ResultWriter:
    """Writes results of calls with the envelope of the stateless era around them."""

    def __init__(self, name: str, version: str) -> None:
        server = encode.dumps({"name": name, "version": version})
        self._envelope = ResultEnvelope(server)
        self._read_envelope = ResultEnvelope(server, b'"ttlMs":0,"cacheScope":"private",')

    def result(self, method: str, frame_id: bytes, outcome: Outcome) -> bytes:
        """Write a result of a handshake server as a frame."""
        text = _join((outcome.payload,))
        envelope = self._envelope if method != READ else self._read_envelope
        if has_no_envelope(text):
            return encode.result_with_head(frame_id, envelope.ready, text)
        return encode.result(frame_id, to_stateless_result(text, envelope))


def refusal(
    frame_id: bytes, code: int, message: str, data: Mapping[str, Any] | None = None
) -> Reply:
    payload = encode.error_object(code, message, dict(data) if data is not None else None)
    return Reply(encode.error(frame_id, payload), HTTP_STATUS.get(code, 200))


def refuse_bytes(error: FrameError) -> bytes:
    """Make the answer to bytes that are not a frame."""
    return refusal(error.frame_id or _UNANSWERABLE, error.code, error.message).frame


def refuse_version(frame_id: bytes, meta: Raw) -> Reply:
    """Answer a request whose ``_meta`` names a protocol version we do not speak."""
    version = frames.text(envelope.read_envelope(meta).version)
    if version is None:
        return refusal(frame_id, INVALID_PARAMS, "the protocol version must be a string")
    return unsupported(frame_id, version)


def unsupported(frame_id: bytes, version: str) -> Reply:
    """The answer to a version we do not speak, with those we do."""
    data = {"supported": STATELESS_VERSIONS, "requested": version[:100]}
    return refusal(frame_id, UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def ending(frame_id: bytes) -> Reply:
    """The answer to a request that comes too late."""
    words, data = "Junction is ending", {"delivery": "not_sent"}
    reply = refusal(frame_id, SERVER_UNAVAILABLE, words, data)
    return reply._replace(status=503, retry_after=1)


def refuse_ending(part: frames.Frame | FrameError) -> frames.Frame | FrameError:
    """Replace a request of a batch by a refusal, because Junction is ending."""
    if isinstance(part, frames.Frame) and part.is_request:
        return FrameError(SERVER_UNAVAILABLE, "Junction is ending", bytes(part.id))
    return part


def reply_to(frame_id: bytes, outcome: Outcome, correlation_id: str) -> Reply | None:
    """Make the answer to a call that did not end with a result; None where nobody waits for it.

    An error of ours is given the call's correlation id, where there is one.
    """
    if outcome.kind is CANCELLED:
        return None
    if outcome.kind is SUSPENDED:
        state = frames.members(outcome.payload).get("requestState", b"")
        return Reply(outcome.frame(frame_id), state=frames.octets(state))
    code, payload = outcome.code, outcome.payload
    status = HTTP_STATUS.get(code, 200)
    if outcome.kind is not ERROR or outcome.delivery is None:  # a server's own
        return Reply(encode.error(frame_id, payload), status)
    if outcome.delivery is _NOT_SENT:
        status = _OWN_STATUS.get(code, status)
    if correlation_id:
        payload = _with_correlation_id(payload, correlation_id)
    wait = _seconds_to_wait(payload) if status in _WAITING else 0
    return Reply(encode.error(frame_id, payload), status, retry_after=wait)


def _with_correlation_id(payload: Raw | bytes, correlation_id: str) -> bytes:
    error = frames.members(payload)
    data = frames.object_members(error.get("data"))
    data["correlation_id"] = Raw(encode.dumps(correlation_id))
    return encode.dumps({**error, "data": data})


class _Wait(msgspec.Struct, frozen=True):
    retry_after_ms: float = 1000.0


class _WaitingError(msgspec.Struct):
    data: _Wait = _Wait()


def _seconds_to_wait(payload: Raw | bytes) -> int:
    """Read when an error says to try again, in whole seconds."""
    try:
        wait = msgspec.json.decode(payload, type=_WaitingError).data.retry_after_ms / 1000
    except msgspec.MsgspecError:
        wait = 1.0
    return max(1, math.ceil(min(wait, _LONGEST_WAIT)))
