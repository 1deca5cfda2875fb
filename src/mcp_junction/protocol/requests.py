"""Decodes usual messages in one pass: a client's request with its params, a server's answer.

All other messages are decoded by ``frames.py``. Splits batches, too: JSON arrays of messages, which
versions before 2025-06-18 allow. ``check_json`` checks a text that is to become part of a request,
such as the arguments on the command line.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import (
    ANSWER_SIZE,
    ID_STARTS,
    LEAST_REPEAT,
    MAX_DEPTH,
    MAX_ID_BYTES,
    NOTHING,
    SMALL,
    Frame,
)
from mcp_junction.protocol.versions import INVALID_REQUEST, PARSE_ERROR


class ClientRequest(Frame, gc=False):
    """A request whose params are decoded one level deep; its ``params`` stay empty."""

    known: dict[str, Raw] = msgspec.field(default_factory=dict)

    def members(self) -> dict[str, Raw]:
        return self.known


class _Plain(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: Raw
    method: str
    params: dict[str, Raw]


class _PlainAnswer(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: Raw
    result: Raw


_plain = msgspec.json.Decoder(_Plain)
_answers = msgspec.json.Decoder(_PlainAnswer)
_values = msgspec.json.Decoder(Raw)
_encode = msgspec.json.Encoder().encode
_join = b"".join
_VERSION = "2.0"
_RESULT: Final = b'"result":'
_HEAD: Final = 64
"""Bytes in which the result of a usual answer begins."""


def decode(data: bytes) -> Frame:
    """Decode one frame of a client. Raises FrameError as ``frames.decode`` does."""
    if len(data) >= SMALL:
        return frames.decode(data)
    try:
        if not data.isascii():
            str(data, "utf-8")
        found = _plain.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return frames.decode(data)
    frame_id = _join((found.id,))
    if (
        not found.method
        or frame_id[0] not in ID_STARTS
        or len(frame_id) > MAX_ID_BYTES
        # Without white space, a frame is exactly as long as its members unless one is repeated.
        or len(data) - len(_encode(found)) >= LEAST_REPEAT
        or len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) > MAX_DEPTH
    ):
        return frames.decode(data)
    return ClientRequest(_VERSION, frame_id, found.method, known=found.params)  # type: ignore[arg-type]


def read_answer(data: bytes) -> tuple[bytes, Raw] | None:
    """Read the id and the result of a usual answer; None for any other frame.

    A frame that ``frames.decode`` refuses is not a usual one, unless for its id, which is of no
    request then. This is on the path of every call.
    """
    if len(data) >= SMALL or data.find(_RESULT, 0, _HEAD) < 0:
        return None
    try:
        if not data.isascii():
            str(data, "utf-8")
        found = _answers.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    frame_id, result = _join((found.id,)), found.result
    if (
        len(data) - len(frame_id) - len(result) - ANSWER_SIZE >= LEAST_REPEAT
        or len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) > MAX_DEPTH
    ):
        return None
    return frame_id, result


def check_json(data: bytes) -> bytes:
    """Check a JSON text by the limits of frames; return it without white space around it.

    Raises FrameError.
    """
    try:
        str(data, "utf-8")
        _values.decode(data)
    except UnicodeDecodeError as error:
        raise FrameError(PARSE_ERROR, f"not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise FrameError(PARSE_ERROR, frames.TOO_DEEP) from None
    except msgspec.DecodeError as error:
        raise FrameError(PARSE_ERROR, str(error)) from None
    if frames.is_too_deep(data):
        raise FrameError(PARSE_ERROR, frames.TOO_DEEP)
    if frames.has_long_number(data):
        raise FrameError(PARSE_ERROR, frames.TOO_LONG)
    return data.strip(b" \t\r\n")


def read_cancellation(frame: Frame) -> tuple[bytes, str]:
    """Read which request a client cancels, and why. Raises FrameError."""
    params = frames.members(frame.params)
    reason = frames.text(params.get("reason")) or "cancelled by the client"
    return bytes(params.get("requestId", b"")), reason


MAX_BATCH: Final = 100
MAX_ANSWERS: Final = 1000
"""The most answers in a batch of a server."""

BatchPart = Frame | FrameError


@cache
def _elements(most: int) -> msgspec.json.Decoder[Any]:
    """Make a decoder for an array of at most ``most`` elements.

    It stops at the first one over the limit, so that a body of commas does not become a million
    objects first.
    """
    members = [(f"element_{number}", Raw, NOTHING) for number in range(most)]
    elements: Any = msgspec.defstruct(
        "_Elements", members, array_like=True, forbid_unknown_fields=True
    )
    return msgspec.json.Decoder(elements)


def split_batch(data: bytes) -> list[BatchPart]:
    """Decode the messages of a batch. Raises FrameError when the array itself is wrong."""
    return [_part(text) for text in split_raw(data)]


def split_raw(data: bytes, most: int = MAX_BATCH) -> list[bytes]:
    """Split a batch into texts. Raises FrameError when the array itself is wrong."""
    try:
        read = _elements(most).decode(data)
    except msgspec.ValidationError:
        message = f"a batch may hold {most} messages, not more"
        raise FrameError(INVALID_REQUEST, message) from None
    except RecursionError:
        raise FrameError(PARSE_ERROR, frames.TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(PARSE_ERROR, str(error)) from None
    texts = [bytes(raw) for raw in msgspec.structs.astuple(read) if raw]
    if not texts:
        raise FrameError(INVALID_REQUEST, "the batch is empty")
    return texts


def join_answers(answers: list[bytes]) -> bytes:
    """Join the answers to a batch into one line."""
    return b"[%b]\n" % b",".join([answer.rstrip(b"\n") for answer in answers])


def _part(data: bytes) -> BatchPart:
    try:
        frame = frames.decode(data)
    except FrameError as error:
        return error
    if frame.method == "initialize" and frame.id:
        message = "initialize must not be part of a batch: send it first, and alone"
        return FrameError(INVALID_REQUEST, message, bytes(frame.id))
    return frame
