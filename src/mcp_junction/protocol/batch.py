"""Batches: several messages in one JSON array, as versions before 2025-06-18 allow.

``split`` makes frames of one; what is wrong with a single element is that element's error and
spoils no other. Which sessions may send batches the version says (``BATCHING``); one of a server
is taken whatever its version, message by message (``texts``). Only what is no frame for being an
array comes here: a single frame pays nothing for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import NOTHING, Frame
from mcp_junction.protocol.versions import INVALID_REQUEST, PARSE_ERROR

MAX_BATCH: Final = 100
MAX_ANSWERS: Final = 1000
"""In a batch of a server, which has been asked them."""

Part = Frame | FrameError


@cache
def _elements(most: int) -> msgspec.json.Decoder[Any]:
    """Reads an array of at most so many elements: it stops at the first that is too many, so that a
    body full of commas is not taken apart into a million pieces first."""
    members = [(f"element_{number}", Raw, NOTHING) for number in range(most)]
    elements: Any = msgspec.defstruct(
        "_Elements", members, array_like=True, forbid_unknown_fields=True
    )
    return msgspec.json.Decoder(elements)


def split(data: bytes) -> list[Part]:
    """The messages of a batch, in their order. Raises FrameError when the array itself is wrong."""
    return [_part(text) for text in texts(data)]


def texts(data: bytes, most: int = MAX_BATCH) -> list[bytes]:
    """The messages as they were written. Raises FrameError when the array itself is wrong."""
    try:
        read = _elements(most).decode(data)
    except msgspec.ValidationError:
        message = f"a batch may hold {most} messages, not more"
        raise FrameError(INVALID_REQUEST, message) from None
    except RecursionError:
        raise FrameError(PARSE_ERROR, frames.TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(PARSE_ERROR, str(error)) from None
    found = [bytes(raw) for raw in msgspec.structs.astuple(read) if raw]
    if not found:
        raise FrameError(INVALID_REQUEST, "the batch is empty")
    return found


def join(answers: list[bytes]) -> bytes:
    """The answers to a batch as one line."""
    return b"[%b]\n" % b",".join([answer.rstrip(b"\n") for answer in answers])


def _part(data: bytes) -> Part:
    try:
        frame = frames.decode(data)
    except FrameError as error:
        return error
    if frame.method == "initialize" and frame.id:
        message = "initialize must not be part of a batch: send it first, and alone"
        return FrameError(INVALID_REQUEST, message, bytes(frame.id))
    return frame
