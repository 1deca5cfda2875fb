"""The one encoder: every frame that leaves Junction is made here, and is one line by construction.

Raw payloads may hold line breaks between their tokens. Written to a stdio peer as they are, such a
payload could carry a second frame inside the first. So a frame is joined, searched for CR and LF,
and when it holds one it is re-formatted without white space, which keeps number spellings and key
order. Each frame ends with the one line feed; over HTTP that is harmless white space, in an event
stream it ends the ``data:`` line.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.protocol.versions import INTERNAL_ERROR

Payload = Raw | bytes

_RETURN: Final = ord("\r")
_FEW: Final = 32
_encoder = msgspec.json.Encoder()
_names: dict[str, bytes] = {}


def dumps(value: Any) -> bytes:
    """Any plain value as JSON bytes."""
    return _encoder.encode(value)


def _line(frame: bytes) -> bytes:
    """A frame that ends with its line feed, and has no other."""
    # ``index`` stops at the first, which is the one at the end or there are others. ``in`` takes a
    # fifth for a number of what it takes for bytes.
    if frame.index(b"\n") == len(frame) - 1 and _RETURN not in frame:
        return frame
    return msgspec.json.format(frame, indent=-1) + b"\n"


def request(frame_id: Payload, method: str, params: Payload = b"") -> bytes:
    """A request. ``frame_id`` and ``params`` are JSON already."""
    name = _names.get(method) or _name(method)
    if not params:
        return _line(b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"method":', name, b"}\n")))
    parts = (
        b'{"jsonrpc":"2.0","id":',
        frame_id,
        b',"method":',
        name,
        b',"params":',
        params,
        b"}\n",
    )
    return _line(b"".join(parts))


def _name(method: str) -> bytes:
    """A method as JSON, remembered: there are few, and one of them comes with every call."""
    name = _encoder.encode(method)
    if len(_names) < _FEW:
        _names[method] = name
    return name


def notification(method: str, params: Payload = b"") -> bytes:
    head = b'{"jsonrpc":"2.0","method":' + _encoder.encode(method)
    if not params:
        return head + b"}\n"
    return _line(b"".join((head, b',"params":', params, b"}\n")))


def result(frame_id: Payload, payload: Payload) -> bytes:
    return _line(b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"result":', payload, b"}\n")))


def result_with_head(frame_id: Payload, members: bytes, payload: bytes) -> bytes:
    """A result that begins with ``members``: ``{`` and each with a comma behind it.

    The payload is an object that has members of its own.
    """
    head = b'{"jsonrpc":"2.0","id":'
    return _line(b"".join((head, frame_id, b',"result":', members, payload[1:], b"}\n")))


def compact_result(frame_id: Payload, payload: bytes) -> bytes:
    """A result whose payload went through ``one_line`` when it was made."""
    return b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"result":', payload, b"}\n"))


def compact_result_with(frame_id: Payload, payload: bytes, tail: bytes) -> bytes:
    """A ready result whose object goes on with ``tail``, which closes it too.

    Neither has line breaks, and the payload has at least one member.
    """
    body = memoryview(payload)[:-1]
    return b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"result":', body, tail, b"}\n"))


def to_one_line(payload: bytes) -> bytes:
    """A payload without line breaks, however its raw parts were written."""
    if b"\n" in payload or b"\r" in payload:
        return msgspec.json.format(payload, indent=-1)
    return payload


def error(frame_id: Payload, payload: Payload) -> bytes:
    """An error answer whose error object is JSON already: ours, or a server's own, unchanged."""
    return _line(b"".join((b'{"jsonrpc":"2.0","id":', frame_id, b',"error":', payload, b"}\n")))


def error_object(code: int, message: str, data: dict[str, Any] | None = None) -> bytes:
    """The error object of a failure of ours."""
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    try:
        return _encoder.encode(body)
    except (UnicodeEncodeError, TypeError, ValueError):  # a message quoting what cannot be written
        return _encoder.encode({"code": code or INTERNAL_ERROR, "message": ascii(message)})
