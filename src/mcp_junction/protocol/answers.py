"""Reads the usual answers of servers in one step. All other frames are read by ``frames.py``."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Raw

from mcp_junction.protocol.frames import ANSWER_SIZE, LEAST_REPEAT, MAX_DEPTH, SMALL


class _PlainAnswer(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: Raw
    result: Raw


_answers = msgspec.json.Decoder(_PlainAnswer)
_join = b"".join
_RESULT: Final = b'"result":'
_HEAD: Final = 64
"""Bytes in which the result of a usual answer begins."""


def read_answer(data: bytes) -> tuple[bytes, Raw] | None:
    """Read the id and the result of a usual answer; None for any other frame.

    A frame that ``decode`` refuses is not a usual one, unless for its id, which is of no request
    then. This is on the path of every call.
    """
    if len(data) >= SMALL or _RESULT not in data[:_HEAD]:
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
