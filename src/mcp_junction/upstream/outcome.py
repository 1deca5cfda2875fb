"""Outcome: how an attempt ended, and so how a call ended. Payloads are JSON bytes, unread.

A failure says ``delivery``, because what a caller may do next depends on it: a call that was not
sent can be made again; one that may have run cannot be repeated without thought.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import (
    CALL_TIMEOUT,
    LINK_LOST,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
    SIGN_IN_NEEDED,
)
from mcp_junction.resilience.failures import Failure, FailureKind


class Delivery(StrEnum):
    """Whether a call that failed may have run."""

    NOT_SENT = "not_sent"  # no byte of it was handed to the transport
    UNKNOWN = "unknown"  # it was sent and no answer came: it may have run
    EXECUTED = "executed"  # an answer came and could not be used


class OutcomeKind(StrEnum):
    RESULT = "result"
    SUSPENDED = "suspended"  # a result that asks the client something; the call goes on after it
    ERROR = "error"
    CANCELLED = "cancelled"


RESULT: Final = OutcomeKind.RESULT  # for the call path, see protocol/versions.py
SUSPENDED: Final = OutcomeKind.SUSPENDED
ERROR: Final = OutcomeKind.ERROR
CANCELLED: Final = OutcomeKind.CANCELLED


LINK_FAILED: Final = Failure(FailureKind.LINK, was_sent=False)
"""A connection failed before anything of the call was sent."""
_LINK_LOST: Final = Failure(FailureKind.LINK)
_NO_LINK: Final = Failure(FailureKind.UNAVAILABLE, was_sent=False)
_TIMEOUT: Final = Failure(FailureKind.TIMEOUT)
SIGNED_OUT: Final = Failure(FailureKind.CREDENTIAL)
"""Nobody is signed in to the server; by identity, so that it is told from other refusals."""
_RENEWED: Final = Failure(FailureKind.CREDENTIAL, is_renewed=True)
CALLER_DEADLINE: Final = Failure(FailureKind.CALLER_DEADLINE)
"""The caller gave the call less time than it needed."""
CANCELLATION: Final = Failure(FailureKind.CANCELLED)
"""The call was ended from our side, for the caller or for a reason of ours."""


class _ErrorMessage(msgspec.Struct):
    message: str


class _ErrorCode(msgspec.Struct):
    code: int = 0


class _OwnError(msgspec.Struct):
    code: int
    message: str
    data: dict[str, Raw] = {}


# Made once: the first use of a type leaves garbage for the collector.
_decode_message = msgspec.json.Decoder(_ErrorMessage).decode
_decode_code = msgspec.json.Decoder(_ErrorCode).decode
_decode_own = msgspec.json.Decoder(_OwnError).decode


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt or call."""

    kind: OutcomeKind
    payload: Raw | bytes
    delivery: Delivery | None = None
    attempts: int = 0
    """How many attempts were made for it."""
    target: str = ""
    """The canonical name of what was called; empty when nothing was."""
    is_enveloped: bool = False
    """Whether the payload has the result envelope of the stateless era already."""
    failure: Failure | None = None
    """What is known of why it failed where it was made; None where that says nothing more."""

    def counted(self, attempts: int, target: str) -> Outcome:
        """Return this outcome with the attempts that were made for it."""
        return Outcome(
            self.kind,
            self.payload,
            self.delivery,
            attempts,
            target,
            self.is_enveloped,
            self.failure,
        )

    def with_delivery(self, delivery: Delivery) -> Outcome:
        """Return this failure of ours with another delivery, in its data, too."""
        error = _decode_own(self.payload)
        data = error.data | {"delivery": Raw(encode.dumps(delivery.value))}
        payload = encode.error_object(error.code, error.message, data)
        return msgspec.structs.replace(self, payload=payload, delivery=delivery)

    @property
    def message(self) -> str:
        """The message of an error."""
        try:
            return _decode_message(self.payload).message
        except msgspec.DecodeError:
            return bytes(self.payload).decode("utf-8", "replace")

    @property
    def code(self) -> int:
        """The code of an error; 0 when it has none."""
        try:
            return _decode_code(self.payload).code
        except msgspec.DecodeError:
            return 0

    def frame(self, frame_id: bytes) -> bytes:
        """Encode the answer to a request as a frame."""
        if self.kind is RESULT or self.kind is SUSPENDED:
            return encode.result(frame_id, self.payload)
        return encode.error(frame_id, self.payload)


def result(payload: Raw | bytes) -> Outcome:
    """Make the outcome for a result."""
    return Outcome(RESULT, payload)


def refused(payload: Raw | bytes, failure: Failure | None = None) -> Outcome:
    """Make the outcome for a server's own error."""
    return Outcome(OutcomeKind.ERROR, payload, failure=failure)


def failed(
    code: int,
    message: str,
    delivery: Delivery | None = None,
    *,
    failure: Failure | None = None,
    **data: Any,
) -> Outcome:
    """Make the outcome for an error of our own."""
    if delivery is not None:
        data["delivery"] = delivery.value
    payload = encode.error_object(code, message, data or None)
    return Outcome(OutcomeKind.ERROR, payload, delivery, failure=failure)


def unavailable(server: str, why: str, failure: Failure = _NO_LINK) -> Outcome:
    """Make the outcome for a call that could not be sent.

    ``failure`` is LINK_FAILED where a connection failed, and not merely none was there.
    """
    return failed(
        SERVER_UNAVAILABLE,
        f"server {server!r} is not available: {why}",
        Delivery.NOT_SENT,
        failure=failure,
        server=server,
    )


def sign_in_needed(server: str, why: str, link: str = "") -> Outcome:
    """Make the outcome for a call that a server refused, or would, because nobody is signed in.

    ``link`` is where to sign in. It is in the message too: many clients drop the data of errors.
    """
    words = f"server {server!r} needs a sign-in: {why}"
    more = {"sign_in": link} if link else {}
    if link:
        words += f"; sign in at {link}"
    return failed(
        SIGN_IN_NEEDED, words, Delivery.NOT_SENT, failure=SIGNED_OUT, server=server, **more
    )


def token_renewed(server: str) -> Outcome:
    """Make the outcome for a call that a server refused for a token that was replaced since."""
    words = f"server {server!r} refused its token, which has been renewed; call again"
    return failed(SERVER_UNAVAILABLE, words, Delivery.NOT_SENT, failure=_RENEWED, server=server)


def overloaded(server: str, calls: int) -> Outcome:
    """Make the outcome for a server that has as many calls as it may have."""
    message = f"server {server!r} has {calls} calls under way, as many as it may have; try later"
    return failed(RATE_LIMITED, message, Delivery.NOT_SENT, failure=_NO_LINK, server=server)


def over_quota(calls: int) -> Outcome:
    """Make the outcome for a caller that has as many calls as one principal may have."""
    message = (
        f"you have {calls} calls in flight, as many as one principal may have"
        " (max_calls_per_principal); try again when one of them has ended"
    )
    return failed(RATE_LIMITED, message, Delivery.NOT_SENT)


def link_lost(server: str, delivery: Delivery, why: str) -> Outcome:
    is_sent = delivery is not Delivery.NOT_SENT
    return failed(
        LINK_LOST,
        f"the connection to server {server!r} was lost: {why}",
        delivery,
        failure=_LINK_LOST if is_sent else LINK_FAILED,
        server=server,
    )


def timed_out(
    server: str, delivery: Delivery, seconds: float, failure: Failure | None = None
) -> Outcome:
    """Make the outcome for a call whose time is over.

    One that was not sent has waited for a connection, which says nothing about the tool.
    """
    if failure is None:
        failure = _NO_LINK if delivery is Delivery.NOT_SENT else _TIMEOUT
    return failed(
        CALL_TIMEOUT,
        f"server {server!r} did not answer within {seconds:g} s",
        delivery,
        failure=failure,
        server=server,
    )


def fell_silent(server: str, delivery: Delivery, seconds: float) -> Outcome:
    """Make the outcome for an attempt whose server said nothing for too long."""
    message = f"server {server!r} said nothing for {seconds:g} s"
    failure = _NO_LINK if delivery is Delivery.NOT_SENT else _TIMEOUT
    return failed(CALL_TIMEOUT, message, delivery, failure=failure, server=server)


def cancelled(reason: str, delivery: Delivery) -> Outcome:
    payload = encode.error_object(
        CALL_TIMEOUT, f"cancelled: {reason}", {"delivery": delivery.value}
    )
    return Outcome(OutcomeKind.CANCELLED, payload, delivery, failure=CANCELLATION)
