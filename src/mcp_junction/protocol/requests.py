"""Requests of clients, read in one pass: the envelope, and the params one level deep.

Nearly every message of a client is a plain request. Whatever is not, or not plainly so, is left to
``frames.decode``, which takes what is unusual and says what is wrong.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import (
    ID_STARTS,
    LEAST_REPEAT,
    MAX_DEPTH,
    MAX_ID_BYTES,
    SMALL,
    Frame,
)


class Request(Frame, gc=False):
    """A request whose params have been read; it has them as members only, and its id as bytes."""

    known: dict[str, Raw] = msgspec.field(default_factory=dict)

    def members(self) -> dict[str, Raw]:
        return self.known


class _Plain(msgspec.Struct, gc=False):
    jsonrpc: str
    id: Raw
    method: str
    params: dict[str, Raw]


_plain = msgspec.json.Decoder(_Plain)
_encode = msgspec.json.Encoder().encode
_VERSION = "2.0"


def decode(data: bytes) -> Frame:
    """Read one frame of a client. Raises FrameError as ``frames.decode`` does."""
    if len(data) >= SMALL:
        return frames.decode(data)
    try:
        if not data.isascii():
            str(data, "utf-8")
        found = _plain.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return frames.decode(data)
    frame_id = frames.octets(found.id)
    if (
        found.jsonrpc != _VERSION
        or not found.method
        or frame_id[0] not in ID_STARTS
        or len(frame_id) > MAX_ID_BYTES
        # Written without white space a frame is as long as its members, if each is there once.
        or len(data) - len(_encode(found)) >= LEAST_REPEAT
        or len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) > MAX_DEPTH
    ):
        return frames.decode(data)
    return Request(_VERSION, frame_id, found.method, known=found.params)  # type: ignore[arg-type]
