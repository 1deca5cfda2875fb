"""The HTTP headers that repeat parts of a call in the stateless era.

``Mcp-Name`` repeats a name or a URI, ``Mcp-Param-*`` the arguments that a tool's input schema marks
with ``x-mcp-header``. These functions find and check the marks, write the headers, and compare a
caller's headers with its arguments. No ``$ref`` of a schema is followed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames

MARK: Final = "x-mcp-header"
MARK_BYTES: Final = MARK.encode()
_TYPES: Final = ("string", "integer", "boolean")
_WRAPPER: Final = "=?"
_WRAPPED = re.compile(r"=\?base64\?(.*)\?=")
_PLAIN = re.compile(r"[\x20-\x7e]*")
_PLAIN_JSON = re.compile(rb'"(?!=\?)[!#-\[\]-~](?:[ !#-\[\]-~]*[!#-\[\]-~])?"')
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

# Where a JSON Schema holds further schemas, other than under ``properties``.
_ONE: Final = frozenset(
    ("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames")
) | {"unevaluatedProperties", "not", "if", "then", "else", "contentSchema"}
_SEVERAL: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))

_Path = tuple[str, ...]


class ParamHeader(msgspec.Struct, frozen=True):
    """An argument that is repeated in a header."""

    path: _Path
    token: str
    type: str

    @property
    def name(self) -> bytes:
        """The header's name, in lower case."""
        return b"mcp-param-%b" % self.token.lower().encode()


# -- the values of headers


def encode_value(text: str) -> bytes:
    """Encode a text as a header's value: as it is, or in base64 where a header cannot hold it."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _WRAPPED.fullmatch(text):
        return text.encode()
    return b"=?base64?%b?=" % base64.b64encode(text.encode("utf-8", "replace"))


def decode_value(value: bytes) -> str | None:
    """Decode a header's value; None when its base64 is not valid."""
    text = value.decode("latin-1")
    found = _WRAPPED.fullmatch(text) if text.startswith(_WRAPPER) else None
    if found is None:
        return text
    try:
        inner = base64.b64decode(found[1], validate=True)
        canonical = base64.b64encode(inner).decode() == found[1]
        return inner.decode("utf-8") if canonical else None
    except (binascii.Error, ValueError):
        return None


def encode_plain(text: str) -> bytes | None:
    """Encode a text that needs no base64; None for other texts."""
    return text.encode() if text.isascii() and not text.startswith(_WRAPPER) else None


def name_line(raw_name: Raw | bytes) -> bytes:
    """Make the header line for a name or a URI that is JSON already."""
    raw = bytes(raw_name)
    if _PLAIN_JSON.fullmatch(raw):
        return b"mcp-name: %b\r\n" % raw[1:-1]
    return b"mcp-name: %b\r\n" % encode_value(frames.text(raw_name) or "")


# -- the marks of a schema


def find_marked(schema: Raw | bytes) -> tuple[ParamHeader, ...]:
    """Find the arguments that a schema marks; none when a mark is invalid."""
    return read_marks(schema)[0]


def read_marks(schema: Raw | bytes) -> tuple[tuple[ParamHeader, ...], str | None]:
    """Find the arguments that a schema marks; or say what is wrong with a mark."""
    if MARK_BYTES not in bytes(schema):
        return (), None
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        return (), f"the schema cannot be read: {error}"
    found: dict[str, ParamHeader] = {}
    for path, part in _subschemas(root):
        if MARK in part:
            wrong = _mark_fault(path, part, found)
            if wrong is not None:
                return (), wrong
            assert path is not None
            header = ParamHeader(path, part[MARK], part["type"])
            found[header.token.lower()] = header
    return tuple(found.values()), None


def _mark_fault(
    path: _Path | None, part: dict[str, Any], found: dict[str, ParamHeader]
) -> str | None:
    if not path:
        return f"{MARK} stands where no chain of properties leads"
    where, token, kind = ".".join(path), part[MARK], part.get("type")
    if not isinstance(token, str):
        return f"{where!r}: {MARK} is not a string"
    if not _TOKEN.fullmatch(token):
        return f"{where!r}: {MARK} {token!r} cannot be part of a header's name"
    if kind not in _TYPES:
        return f"{where!r}: {MARK} is only for strings, integers and booleans"
    if token.lower() in found:
        other = ".".join(found[token.lower()].path)
        return f"{where!r}: {MARK} {token!r} is that of {other!r} too"
    return None


def _subschemas(root: Any) -> Iterator[tuple[_Path | None, dict[str, Any]]]:
    """Iterate over the schemas within a schema, each with its path of properties, if it has one."""
    waiting: list[tuple[_Path | None, Any]] = [((), root)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, dict):
            yield path, part
            for word, value in part.items():
                waiting += _within(path, word, value)


def _within(path: _Path | None, word: str, value: Any) -> list[tuple[_Path | None, Any]]:
    if word == "properties" and isinstance(value, dict):
        return [(None if path is None else (*path, key), part) for key, part in value.items()]
    if word in _ONE:
        return [(None, value)]
    if word in _SEVERAL and isinstance(value, list):
        return [(None, part) for part in value]
    if word in _NAMED and isinstance(value, dict):
        return [(None, part) for part in value.values()]
    return []


# -- the headers of a call


def header_lines(marked: tuple[ParamHeader, ...], arguments: Raw | bytes) -> bytes:
    """Make the header lines for the marked arguments of a call."""
    lines = b""
    for header in marked:
        text = _text(_at(arguments, header.path))
        if text is not None:
            lines += b"%b: %b\r\n" % (header.name, encode_value(text))
    return lines


def find_mismatch(
    marked: tuple[ParamHeader, ...], arguments: Raw | bytes, headers: Mapping[bytes, bytes]
) -> str | None:
    """Say how a caller's headers contradict its arguments; None when they agree.

    The names of headers are in lower case.
    """
    for header in marked:
        raw = _at(arguments, header.path)
        text, value = _text(raw), headers.get(header.name)
        if text is None and value is None:
            continue
        wrong = _contradiction(header, raw, text, value)
        if wrong is not None:
            return f"the header {header.name.decode()} {wrong} ({'.'.join(header.path)})"
    return None


def _contradiction(
    header: ParamHeader, raw: bytes, text: str | None, value: bytes | None
) -> str | None:
    if value is None:
        return "is missing, and the argument is there"
    if text is None:
        return "is there, and the argument is not"
    decoded = decode_value(value)
    if decoded is None:
        return "is not well-formed base64"
    if decoded == text or (header.type == "integer" and _is_same_number(decoded, raw)):
        return None
    return "does not say what the argument says"


def _is_same_number(text: str, raw: bytes) -> bool:
    """Whether a header's decimal number equals the argument, which is an integer."""
    whole, _, fraction = text.partition(".")
    if raw[:1] not in b"-0123456789" or not _DECIMAL.fullmatch(text) or fraction.strip("0"):
        return False
    try:
        number: int | float = int(raw) if _is_whole(raw) else float(raw)
        return int(whole) == number
    except (ValueError, OverflowError):
        return False


def _is_whole(raw: bytes) -> bool:
    return not any(mark in raw for mark in b".eE")


def _at(arguments: Raw | bytes, path: _Path) -> bytes:
    """The JSON of an argument; empty when it is absent or null."""
    found: Raw | bytes = arguments
    try:
        for key in path:
            found = frames.members(found)[key]
    except (FrameError, KeyError):
        return b""
    raw = bytes(found)
    return b"" if raw == b"null" else raw


def _text(raw: bytes) -> str | None:
    """Format an argument as a header's text; None when it is no plain value."""
    first = raw[:1]
    if first == b'"':
        return frames.text(Raw(raw))
    if first in (b"", b"{", b"["):
        return None
    if first in (b"t", b"f"):
        return raw.decode()
    try:
        return str(int(raw)) if _is_whole(raw) else str(float(raw))
    except ValueError:
        return None
