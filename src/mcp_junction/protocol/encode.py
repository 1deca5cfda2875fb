"""Encodes every frame that Junction sends, always as one line.

Raw payloads may contain line breaks between their tokens; written to a stdio peer like that, a
payload could smuggle in a second frame. So each frame is searched for CR and LF, and reformatted
without white space when it contains one, which keeps number spellings and key order. Each frame
ends with a line feed; over HTTP that is harmless, in an event stream it ends the ``data:`` line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.protocol.versions import INTERNAL_ERROR

Payload = Raw | bytes

_RETURN: Final = ord("\r")
_FEW: Final = 32
_encoder = msgspec.json.Encoder()
_names: dict[str, bytes] = {}


dumps: Final[Callable[[Any], bytes]] = _encoder.encode
"""Encodes a plain value as JSON."""


def _ensure_line(frame: bytes) -> bytes:
    """Remove line breaks other than the line feed at the end of a frame."""
    # ``index`` stops at the first, which is not the last if there are others. Searching for a
    # number with ``in`` takes a fifth of the time of searching for bytes.
    if frame.index(b"\n") == len(frame) - 1 and _RETURN not in frame:
        return frame
    return msgspec.json.format(frame, indent=-1) + b"\n"


def request(frame_id: Payload, method: str, params: Payload = b"") -> bytes:
    """Encode a request. ``frame_id`` and ``params`` are JSON already."""
    name = _names.get(method) or _name(method)
    if not params:
        return _ensure_line(
            b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"method":', name, b"}\n"))
        )
    parts = (
        b'{"jsonrpc":"2.0","id":',
        frame_id,
        b',"method":',
        name,
        b',"params":',
        params,
        b"}\n",
    )
    frame = b"".join(parts)
    if frame.index(b"\n") == len(frame) - 1 and _RETURN not in frame:
        return frame
    return _ensure_line(frame)


def _name(method: str) -> bytes:
    """Encode a method's name, and cache it: there are few, and each call has one."""
    name = _encoder.encode(method)
    if len(_names) < _FEW:
        _names[method] = name
    return name


def notification(method: str, params: Payload = b"") -> bytes:
    """Encode a notification. ``params`` is JSON already."""
    head = b'{"jsonrpc":"2.0","method":' + _encoder.encode(method)
    if not params:
        return head + b"}\n"
    return _ensure_line(b"".join((head, b',"params":', params, b"}\n")))


def result(frame_id: Payload, payload: Payload) -> bytes:
    """Encode a result. ``frame_id`` and ``payload`` are JSON already."""
    frame = b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"result":', payload, b"}\n"))
    if frame.index(b"\n") == len(frame) - 1 and _RETURN not in frame:
        return frame  # as nearly always: this is on the way of every call
    return _ensure_line(frame)


def result_with_head(frame_id: Payload, members: bytes, payload: bytes) -> bytes:
    """Encode a result with further members at its beginning: ``{``, then each with a comma.

    The payload is an object that has members of its own.
    """
    head = b'{"jsonrpc":"2.0","id":'
    return _ensure_line(b"".join((head, frame_id, b',"result":', members, payload[1:], b"}\n")))


def compact_result(frame_id: Payload, payload: bytes) -> bytes:
    """Encode a result whose payload has no line breaks (see ``to_one_line``)."""
    return b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"result":', payload, b"}\n"))


def compact_result_with(frame_id: Payload, payload: bytes, tail: bytes) -> bytes:
    """Encode such a result with further members at its end: ``tail``, which closes the object.

    Neither has line breaks, and the payload has at least one member.
    """
    body = memoryview(payload)[:-1]
    return b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"result":', body, tail, b"}\n"))


def to_one_line(payload: bytes) -> bytes:
    """Reformat a payload without line breaks, if it has any."""
    if b"\n" in payload or b"\r" in payload:
        return msgspec.json.format(payload, indent=-1)
    return payload


def error(frame_id: Payload, payload: Payload) -> bytes:
    """Encode an error answer; the error object is JSON already, ours or a server's."""
    return _ensure_line(
        b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"error":', payload, b"}\n"))
    )


def error_object(code: int, message: str, data: dict[str, Any] | None = None) -> bytes:
    """Encode the error object of a failure of our own."""
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    try:
        return _encoder.encode(body)
    except (UnicodeEncodeError, TypeError, ValueError):  # a message quoting what cannot be written
        return _encoder.encode({"code": code or INTERNAL_ERROR, "message": ascii(message)})
