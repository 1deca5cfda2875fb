"""Frame: one JSON-RPC message, with its payload as raw bytes; and its decoder.

``params``, ``result`` and ``error`` stay raw: unknown fields, number spellings and key order stay,
because nothing reads them into objects. Params that must be changed are read one level deep, as
``dict[str, Raw]`` (``members``).

Every message is decoded here, within limits: valid UTF-8, depth, digits, no NaN, no repeated member
at the top level. Size is limited by the line reader (``lines.py``). Whether a message is valid MCP
is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol.versions import INVALID_REQUEST, PARSE_ERROR

MAX_DEPTH: Final = 64
MAX_ID_BYTES: Final = 1024
MAX_DIGITS: Final = 4300  # what Python itself is willing to read; longer ones stall slower parsers
NOTHING: Final = Raw()

T = TypeVar("T")


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

    def members(self) -> dict[str, Raw]:
        """The members of its params. Raises FrameError for no object, or a repeated member."""
        return unique_members(self.params)


_frames = msgspec.json.Decoder(Frame)
_members = msgspec.json.Decoder(dict[str, Raw])
_strings = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode
_join = b"".join

# For frames that cannot be decoded: strings and brackets, and the value of an "id" behind its name.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
_COLON = re.compile(rb"\s*:")
_VALUE = rb'\s*:\s*(-?(?:0|[1-9]\d{0,17})|"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]){0,256}")\s*'
_ID_VALUE = re.compile(_VALUE + rb"(?=[,}])")
_LAST_ID = re.compile(rb'"id"' + _VALUE + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
_LAST_JSONRPC = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*(?:,\s*"id"' + _VALUE + rb")?\}\s*\Z")
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_HAS_LONE_SURROGATE = "a string holds half of a character (a surrogate without its other half)"
_PROBE = 64
_SEARCHED = 4096
"""Bytes at either end of a damaged frame in which its members are looked for."""

_ID = len(b'"id":,')
LEAST_REPEAT = len(b',"id":1')
_VERSION = "2.0"
_CALL = len(b'{"jsonrpc":"2.0","id":,"method":"","params":}')
ANSWER_SIZE = len(b'{"jsonrpc":"2.0","id":,"result":}')

_DIGITS = frozenset(b"0123456789")
ID_STARTS = frozenset(b'"-0123456789')
_NULL_START = ord("n")
_OBJECT_START = ord("{")
_BATCH = "batches are not part of MCP since 2025-06-18: send each message as a frame of its own"
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LONG = f"a number has more than {MAX_DIGITS} digits"

SMALL = 4096
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def decode(data: bytes, *, exact: bool = True) -> Frame:
    """Decode one frame. Raises FrameError with a JSON-RPC code, and the id if it can be found.

    For ``exact`` see ``is_too_deep``.
    """
    try:
        if not data.isascii():
            str(data, "utf-8")
        frame = _frames.decode(data)
        if not _is_plain(frame, data):
            _check(frame, data, exact)
    except UnicodeDecodeError as error:
        raise _refused(data, PARSE_ERROR, f"not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise _refused(data, PARSE_ERROR, TOO_DEEP) from None
    except msgspec.ValidationError as error:
        what = _BATCH if is_batch(data) else f"not a JSON-RPC message: {error}"
        raise _refused(data, INVALID_REQUEST, what) from None
    except msgspec.DecodeError as error:
        raise _refused(
            data, PARSE_ERROR, _HAS_LONE_SURROGATE if _LONE_SURROGATE.search(data) else str(error)
        ) from None
    return frame


def is_batch(data: bytes) -> bool:
    """Whether a text is an array, if it is JSON at all."""
    return data[:64].lstrip(b" \t\r\n")[:1] == b"["


def _is_plain(frame: Frame, data: bytes) -> bool:
    """Whether this is a usual message, in which ``_check`` would find nothing.

    It is small, has few brackets, and is no longer than its members, so none is repeated. This is
    on the path of every call: it makes some checks of ``_check`` in the cheapest way.
    """
    if len(data) >= SMALL or frame.jsonrpc != _VERSION or frame.error:
        return False
    frame_id = _join((frame.id,))
    frame.id = frame_id  # type: ignore[assignment] # it is needed as bytes soon
    if not frame_id:
        least = -_ID
    elif frame_id[0] in ID_STARTS and len(frame_id) <= MAX_ID_BYTES:
        least = len(frame_id)
    else:
        return False
    if frame.method:
        params = _join((frame.params,))
        if not params or params[0] not in b"{[":
            return False
        least += _CALL + len(frame.method) + len(params)
    elif frame.result and frame_id:
        least += ANSWER_SIZE + len(frame.result)
    else:
        return False
    if len(data) - least >= LEAST_REPEAT:
        return False
    # Removing brackets is several times faster than to ``count`` them.
    return len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) <= MAX_DEPTH


def _check(frame: Frame, data: bytes, exact: bool) -> None:
    """Check what the types do not: depth, repeated members, long numbers."""
    if is_too_deep(data, exact=exact):
        raise _refused(data, PARSE_ERROR, TOO_DEEP)
    if len(data) - _least_size(frame) >= LEAST_REPEAT and has_repeated_member(data):
        raise _refused(data, INVALID_REQUEST, "a member of the envelope is repeated or escaped")
    if len(data) > MAX_DIGITS and has_long_number(data):
        raise _refused(data, PARSE_ERROR, TOO_LONG)
    _check_members(frame, data)


def _check_members(frame: Frame, data: bytes) -> None:
    """Check that the id is a number or a string, and that it is a request, notification or answer.

    Some peers write ``null`` for absent params or errors.
    """
    if frame.error and memoryview(frame.error)[0] != _OBJECT_START:
        if memoryview(frame.error)[0] != _NULL_START:
            raise _refused(data, INVALID_REQUEST, "error is not an object")
        frame.error = NOTHING
    if frame.id:
        first = memoryview(frame.id)[0]
        if len(frame.id) > MAX_ID_BYTES:
            raise FrameError(INVALID_REQUEST, f"the id is longer than {MAX_ID_BYTES} bytes")
        if first not in ID_STARTS and not (first == _NULL_START and frame.error):
            raise FrameError(INVALID_REQUEST, "the id is not a number or a string")
    if frame.method:
        if frame.params and memoryview(frame.params)[0] not in b"{[":
            if memoryview(frame.params)[0] != _NULL_START:
                raise _refused(data, INVALID_REQUEST, "params is not an object")
            frame.params = NOTHING
    elif not (frame.result or frame.error):
        raise _refused(data, INVALID_REQUEST, "neither a method nor a result nor an error")


def _least_size(frame: Frame) -> int:
    """The size of the frame without white space: a longer one may have a repeated member."""
    size = 1
    for name in Frame.__struct_fields__:
        value = getattr(frame, name)
        if value:  # quoted name, colon, comma; a text has quotes of its own
            size += len(name) + len(value) + (6 if isinstance(value, str) else 4)
    return size


def has_repeated_member(data: bytes) -> bool:
    """Whether an object has a repeated (or escaped) member name at its top level.

    Without white space, an object is exactly as long as its members unless one is repeated.
    """
    compact = msgspec.json.format(data, indent=-1)
    fields = _members.decode(compact)
    size = 1 + sum(len(msgspec.json.encode(key)) + 2 + len(raw) for key, raw in fields.items())
    return len(compact) != size + (not fields)


def has_repeated_name(data: bytes) -> bool:
    """Whether an object has a repeated member name at its top level, however it is written."""
    return sum(1 for _ in _own_members(data)) != len(_members.decode(data))


def is_too_deep(data: bytes, limit: int = MAX_DEPTH, *, exact: bool = True) -> bool:
    """Whether a valid JSON text is nested deeper than ``limit``; cheap when brackets are few.

    With ``exact=False`` brackets inside strings count, too, as long as they match, so a crafted
    text can look shallower than it is. For large answers of servers that is enough: we never
    descend into them, and msgspec has a limit of its own. Texts with line breaks are always checked
    exactly, since the encoder reformats them.
    """
    if _few_brackets(data, limit):
        return False
    exact = exact or _has_breaks(data)
    if not exact and not _levels_left(data.translate(_ONE_KIND, _NOT_BRACKETS), limit):
        return False
    marks = _without_escapes(data).translate(_ONE_KIND, _NOT_MARKS).replace(b'""', b"")
    if b'"' in marks:
        marks = b"".join(marks.split(b'"')[::2])
    return _levels_left(marks, limit)


def has_long_number(data: bytes) -> bool:
    """Whether a valid JSON text holds a number of more than ``MAX_DIGITS`` digits in a row.

    Such a run includes one byte of every ``MAX_DIGITS``, with digits on at least one side of it:
    the whole text is searched only where a probe finds that.
    """
    sample = data[::MAX_DIGITS]
    for index, byte in enumerate(sample):
        if byte in _DIGITS:
            at = index * MAX_DIGITS
            if data[at : at + _PROBE].isdigit() or data[max(0, at - _PROBE) : at].isdigit():
                outside = b'"'.join(_without_escapes(data).split(b'"')[::2])
                return _LONG_NUMBER.search(outside) is not None
    return False


def _has_breaks(data: bytes) -> bool:
    return data.find(b"\r", 0, -1) >= 0 or data.find(b"\n", 0, -1) >= 0


def _levels_left(brackets: bytes, limit: int) -> bool:
    """Whether brackets are left after removing the innermost pairs ``limit`` times."""
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _without_escapes(data: bytes) -> bytes:
    """Remove the escapes of a JSON text, so that every quote left begins or ends a string."""
    pieces = iter(data.split(b"\\"))
    kept = [next(pieces)]
    # Nothing between two backslashes: the second one is the escaped character.
    kept += [piece[1:] if piece else next(pieces, b"") for piece in pieces]
    return b"".join(kept)


def _few_brackets(data: bytes, limit: int) -> bool:
    """Whether there are at most ``limit`` opening brackets, also counting those in strings."""
    if len(data) < SMALL:
        return len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) <= limit
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


def recover_id(data: bytes) -> bytes | None:
    """Find the id of a damaged frame in its head or its end.

    Only an id at the top level counts: payloads are full of others, and it would be worse to fail
    the wrong call.
    """
    head = data[:_SEARCHED]
    found = None
    for name, end in _own_members(head):
        if name == b'"id"' and (found := _ID_VALUE.match(head, end)):
            break
    found = found or _LAST_ID.search(data[-_SEARCHED:])
    if found is None:
        return None
    try:
        str(found[1], "utf-8")
    except UnicodeDecodeError:
        return None
    return found[1]


def has_jsonrpc(data: bytes) -> bool:
    """Whether a damaged line was meant as a frame; programs write other JSON to stdout, too."""
    if any(name == b'"jsonrpc"' for name, _ in _own_members(data[:_SEARCHED])):
        return True
    return _LAST_JSONRPC.search(data[-_SEARCHED:]) is not None


def has_method(data: bytes) -> bool:
    """Whether a damaged frame was a request or a notification, not an answer."""
    return any(name == b'"method"' for name, _ in _own_members(data[:_SEARCHED]))


def _own_members(head: bytes) -> Iterator[tuple[bytes, int]]:
    """Iterate over the member names of the outermost object, with the position after each."""
    depth = 0
    for token in _TOKENS.finditer(head):
        mark = token[0]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
        elif depth == 1 and _COLON.match(head, token.end()):
            yield mark, token.end()


def octets(raw: Raw | bytes) -> bytes:
    """Convert a raw value to bytes, several times faster than ``bytes`` does."""
    return _join((raw,))


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """Read the members of an object, each still raw. Raises FrameError for anything else."""
    if not raw:
        return {}
    try:
        return _members.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise FrameError(PARSE_ERROR, "not a JSON object") from None


def object_members(raw: Raw | bytes | None) -> dict[str, Raw]:
    """Read the members of an object, each still raw; none for anything else."""
    try:
        return members(raw or b"")
    except FrameError:
        return {}


def unique_members(raw: Raw | bytes) -> dict[str, Raw]:
    """Like ``members``, but raises FrameError for an object with a repeated member."""
    found = members(raw)
    if len(raw) < SMALL:
        size = len(_encode(found))
    else:
        size = 1 + sum(len(key) + 4 + len(value) for key, value in found.items())
    if len(raw) - size >= LEAST_REPEAT and has_repeated_member(octets(raw)):
        raise FrameError(INVALID_REQUEST, "a member of params is repeated or escaped")
    return found


def text(raw: Raw | bytes | None) -> str | None:
    """Decode a raw JSON string; None when it is something else."""
    if raw is None:
        return None
    try:
        return _strings.decode(raw)
    except msgspec.DecodeError:
        return None


def find_by_id(table: Mapping[Any, T], wanted: bytes) -> T | None:
    """Look up an id, also where the same string is written with other escapes."""
    found = table.get(wanted)
    if found is None and wanted[:1] == b'"':
        wanted_text, is_plain = text(wanted), b"\\" not in wanted
        for other, thing in table.items():
            if (b"\\" in other or not is_plain) and text(other) == wanted_text:
                return thing
    return found
