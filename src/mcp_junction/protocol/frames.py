"""Frames and the one decoder.

A Frame is the envelope of a JSON-RPC message. ``params``, ``result`` and ``error`` stay raw bytes:
unknown fields, number spellings and key order survive because nothing ever reads them into objects.
Params that must be touched are read one level deep, as ``dict[str, Raw]`` (``members``).

The decoder is the only way in, and it has limits: valid UTF-8, depth, no NaN, no repeated member in
the envelope. Size is the line reader's business (``lines.py``). It is not a validator of MCP: what
a server means by its result is between it and the client.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol.versions import INVALID_REQUEST, PARSE_ERROR

MAX_DEPTH: Final = 64
MAX_ID_BYTES: Final = 1024
NOTHING: Final = Raw()


class Frame(msgspec.Struct, gc=False):
    """One JSON-RPC message: a request, a notification or an answer."""

    jsonrpc: str = ""
    id: Raw = NOTHING
    method: str = ""
    params: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING

    @property
    def is_request(self) -> bool:
        return bool(self.method) and bool(self.id)

    @property
    def is_notification(self) -> bool:
        return bool(self.method) and not self.id

    @property
    def is_answer(self) -> bool:
        return not self.method


_frames = msgspec.json.Decoder(Frame)
_members = msgspec.json.Decoder(dict[str, Raw])
_strings = msgspec.json.Decoder(str)

# The id of a frame that cannot be decoded, so that its call can be failed instead of left hanging.
_SOME_ID = re.compile(rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]){0,256}")')

_FIXED = len(b"{}")
_JSONRPC = len(b'"jsonrpc":"",')
_ID = len(b'"id":,')
_METHOD = len(b'"method":"",')
_PARAMS = len(b'"params":,')
_RESULT = len(b'"result":,')
_ERROR = len(b'"error":,')
_LEAST_REPEAT = len(b',"id":1')

_ID_STARTS = frozenset(b'"-0123456789')
_NULL_START = ord("n")

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def decode(data: bytes, *, exact: bool = True) -> Frame:
    """Read one frame; raise FrameError with a JSON-RPC code, and the id if it can be told.

    ``exact`` is about depth: see ``too_deep``.
    """
    try:
        if not data.isascii():
            str(data, "utf-8")
        frame = _frames.decode(data)
    except UnicodeDecodeError as error:
        raise _refused(data, PARSE_ERROR, f"not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise _refused(data, PARSE_ERROR, f"nested deeper than {MAX_DEPTH} levels") from None
    except msgspec.ValidationError as error:
        raise _refused(data, INVALID_REQUEST, f"not a JSON-RPC message: {error}") from None
    except msgspec.DecodeError as error:
        raise _refused(data, PARSE_ERROR, str(error)) from None
    if too_deep(data, exact=exact):
        raise _refused(data, PARSE_ERROR, f"nested deeper than {MAX_DEPTH} levels")
    if len(data) - _least_size(frame) >= _LEAST_REPEAT and repeats(data):
        raise _refused(data, INVALID_REQUEST, "a member of the envelope is repeated or escaped")
    _check(frame, data)
    return frame


def _check(frame: Frame, data: bytes) -> None:
    """What the types do not say: an id is a number or a string, a frame has one meaning."""
    if frame.id:
        first = memoryview(frame.id)[0]
        if len(frame.id) > MAX_ID_BYTES:
            raise FrameError(INVALID_REQUEST, f"the id is longer than {MAX_ID_BYTES} bytes")
        if first not in _ID_STARTS and not (first == _NULL_START and frame.error):
            raise FrameError(INVALID_REQUEST, "the id is not a number or a string")
    if frame.method:
        if frame.params and memoryview(frame.params)[0] not in b"{[":
            raise _refused(data, INVALID_REQUEST, "params is not an object")
    elif not (frame.result or frame.error):
        raise _refused(data, INVALID_REQUEST, "neither a method nor a result nor an error")


def _least_size(frame: Frame) -> int:
    """The size of the frame without white space: what is over may hide a repeated member."""
    size = _FIXED - 1
    if frame.jsonrpc:
        size += _JSONRPC + len(frame.jsonrpc)
    if frame.id:
        size += _ID + len(frame.id)
    if frame.method:
        size += _METHOD + len(frame.method)
    if frame.params:
        size += _PARAMS + len(frame.params)
    if frame.result:
        size += _RESULT + len(frame.result)
    if frame.error:
        size += _ERROR + len(frame.error)
    return size


def repeats(data: bytes) -> bool:
    """Whether an object has a repeated (or escaped) member name at its top level.

    Exact, and in C: written without white space, an object is as long as its members, or one of
    them is there twice.
    """
    compact = msgspec.json.format(data, indent=-1)
    fields = _members.decode(compact)
    size = 1 + sum(len(msgspec.json.encode(key)) + 2 + len(raw) for key, raw in fields.items())
    return len(compact) != size + (not fields)


def too_deep(data: bytes, limit: int = MAX_DEPTH, *, exact: bool = True) -> bool:
    """Whether a valid JSON text is nested deeper than ``limit``; cheap when brackets are few.

    With ``exact=False`` brackets inside strings are taken for structure as long as they match up,
    which a text made for the purpose can use to look shallower than it is. For large answers of
    servers that is enough: we never descend into them, and msgspec stops at its own limit anyway.
    """
    if _few_brackets(data, limit):
        return False
    if not exact and not _levels_left(data.translate(_ONE_KIND, _NOT_BRACKETS), limit):
        return False
    marks = _without_escapes(data).translate(_ONE_KIND, _NOT_MARKS).replace(b'""', b"")
    if b'"' in marks:
        marks = b"".join(marks.split(b'"')[::2])
    return _levels_left(marks, limit)


def _levels_left(brackets: bytes, limit: int) -> bool:
    """Whether brackets are left when the innermost pairs go, level by level."""
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _without_escapes(data: bytes) -> bytes:
    """A JSON text without its escapes, so that every quote left begins or ends a string."""
    pieces = iter(data.split(b"\\"))
    kept = [next(pieces)]
    # Nothing between two backslashes: the second one is the escaped character.
    kept += [piece[1:] if piece else next(pieces, b"") for piece in pieces]
    return b"".join(kept)


def _few_brackets(data: bytes, limit: int) -> bool:
    """True when there are at most ``limit`` opening brackets, wherever they stand."""
    if len(data) < 4096:
        return data.count(b"{") + data.count(b"[") <= limit
    seen = 0
    for bracket in (b"{", b"["):
        at = data.find(bracket)
        while at >= 0:
            seen += 1
            if seen > limit:
                return False
            at = data.find(bracket, at + 1)
    return True


def _refused(data: bytes, code: int, message: str) -> FrameError:
    return FrameError(code, message, recover_id(data))


def recover_id(data: bytes, window: int = 4096) -> bytes | None:
    """The id of a damaged frame, if its head or its tail still shows one."""
    found = _SOME_ID.search(data[:window]) or _last_id(data[-window:])
    return found[1] if found else None


def _last_id(tail: bytes) -> re.Match[bytes] | None:
    last = None
    for last in _SOME_ID.finditer(tail):  # noqa: B007 - the last match is what we are after
        pass
    return last


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """The members of an object, each still raw. Raises FrameError when it is not an object."""
    if not raw:
        return {}
    try:
        return _members.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise FrameError(PARSE_ERROR, "not a JSON object") from None


def members_once(raw: Raw | bytes) -> dict[str, Raw]:
    """Like ``members``, but an object that has one twice is refused."""
    found = members(raw)
    size = 1
    for key, value in found.items():
        size += len(key) + 4 + len(value)
    if len(raw) - size >= _LEAST_REPEAT and repeats(bytes(raw)):
        raise FrameError(INVALID_REQUEST, "a member of params is repeated or escaped")
    return found


def text(raw: Raw | bytes | None) -> str | None:
    """A raw JSON string as text, or None when it is something else."""
    if raw is None:
        return None
    try:
        return _strings.decode(raw)
    except msgspec.DecodeError:
        return None
