"""Arguments: what is judged of a call is what is sent, because it can be read in one way only.

The bytes of a call are forwarded as they are, and parsers differ: of two members with one name some
take the first and some the last. So whatever reads arguments reads them here: texts with repeated
names at any depth or lone surrogates are refused. Numbers are kept as they were written. It does
not check arguments against a schema.

The canonical text has its names sorted and its strings in their shortest form. Integers are exact
(``-0`` is 0), other numbers stay as written: 1.0, 1 and 1e0 are three texts. This is not JCS, which
rounds integers beyond 2^53.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import ArgumentsError
from mcp_junction.protocol import frames

INLINE: Final = 64 * 1024
"""Bytes of arguments that are read and checked at once; more are, in a thread."""


class _FractionFound(Exception):
    """A number is not an integer."""


def _stop_at_fraction(_: str) -> None:
    raise _FractionFound


_whole = msgspec.json.Decoder(float_hook=_stop_at_fraction)
"""Reads what most arguments are; it is decoded once, whatever is asked of it."""
_exact = msgspec.json.Decoder(float_hook=Raw)
_as_numbers = msgspec.json.Decoder(float_hook=Decimal)
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_MISSING: Final = object()
_BACKSLASH: Final = ord("\\")

_TOO_DEEP: Final = f"arguments are nested deeper than {frames.MAX_DEPTH} levels; flatten them"
_TOO_LONG: Final = (
    f"arguments hold a number of more than {frames.MAX_DIGITS} digits; send it as a string"
)
_TOO_FAR: Final = "arguments hold a number with too long an exponent; send it as a string"
_HALVED: Final = (
    "arguments hold half of a character (a surrogate without its other half); send valid Unicode"
)
_NOT_UTF8: Final = "arguments are not valid UTF-8; send them as UTF-8"


class Arguments(msgspec.Struct, frozen=True):
    """Arguments that were found to be clear."""

    value: Any
    """What they are. Numbers that are not integers are ``Raw``, as they were written."""
    has_fractions: bool = True
    """Whether there may be such numbers."""

    @property
    def canonical(self) -> bytes:
        """The one text of all that mean the same."""
        return _encode_sorted(self.value)

    @property
    def hash(self) -> str:
        """The SHA-256 of the canonical text; what an idempotency key is bound to."""
        return sha256(_encode_sorted(self.value)).hexdigest()

    @property
    def numbers(self) -> Any:
        """What they are with exact numbers, for validators: ``int`` and ``Decimal``.

        Raises ArgumentsError for a number that no ``Decimal`` is.
        """
        if not self.has_fractions:
            return self.value
        try:
            return _as_numbers.decode(_encode(self.value))
        except ArithmeticError:
            raise ArgumentsError(_TOO_FAR) from None


def read_arguments(raw: Raw | bytes, *, is_shallow: bool = False) -> Arguments:
    """Read the arguments of a call; none at all are an empty object.

    ``is_shallow`` says that they were part of a message whose depth was checked. Raises
    ArgumentsError when parsers could read them differently.
    """
    text = bytes(raw) or b"{}"
    if not is_shallow and frames.is_too_deep(text):
        raise ArgumentsError(_TOO_DEEP)
    try:
        try:
            value, has_fractions = _whole.decode(text), False
        except _FractionFound:
            value, has_fractions = _exact.decode(text), True
        written = _encode(value)
        if written != text and _has_lost(written, text):
            raise ArgumentsError(_say_repeated(text))
    except RecursionError:
        raise ArgumentsError(_TOO_DEEP) from None
    except UnicodeDecodeError:
        raise ArgumentsError(_NOT_UTF8) from None
    except msgspec.ValidationError:
        raise ArgumentsError(_TOO_LONG) from None
    except msgspec.DecodeError as error:
        raise ArgumentsError(_HALVED if _has_half(text) else f"arguments: {error}") from None
    return Arguments(value, has_fractions)


def pick(value: Any, pointer: str) -> Any:
    """Return what a JSON Pointer (RFC 6901) leads to in a value, or raise ArgumentsError."""
    if pointer and not pointer.startswith("/"):
        raise ArgumentsError(f"{pointer!r} is not a JSON Pointer; begin it with /")
    for step in pointer.split("/")[1:]:
        value = _step(value, step.replace("~1", "/").replace("~0", "~"))
        if value is _MISSING:
            raise ArgumentsError(f"arguments have nothing at {pointer!r}")
    return value


def map_arguments(arguments: Arguments, mapping: Mapping[str, Any]) -> bytes:
    """Build the arguments of a fallback target: numbers stay as the caller wrote them.

    A mapping leads from each name that the target takes to a JSON Pointer into the caller's
    arguments, or to ``{"value": …}``. An optional argument that the caller left out is left out.
    """
    built: dict[str, Any] = {}
    for name, source in mapping.items():
        if isinstance(source, str):
            value = _find(arguments.value, source)
            if value is not _MISSING:
                built[name] = value
        else:
            built[name] = source["value"]
    return _encode(built)


def _find(value: Any, pointer: str) -> Any:
    try:
        return pick(value, pointer)
    except ArgumentsError:
        return _MISSING


def _step(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if (
        isinstance(value, list)
        and step.isascii()
        and step.isdigit()
        and (step == "0" or step[0] != "0")
    ):
        index = int(step) if len(step) < 10 else len(value)
        return value[index] if index < len(value) else _MISSING
    return _MISSING


def _has_lost(written: bytes, text: bytes) -> bool:
    """Whether what was read of a text has fewer members than the text itself."""
    if _BACKSLASH not in text:  # then nothing in either is escaped: each string has two quotes
        return written.count(b'"') != text.count(b'"')
    return _count_names(written) != _count_names(text)


def _count_names(text: bytes) -> int:
    """Count the member names of a valid JSON text.

    What was read of a text has fewer than the text itself when names are repeated in it.
    """
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(bare.split(b'"')[::2]).count(b":")


def _has_half(text: bytes) -> bool:
    """Whether a text that was refused holds a surrogate without its other half."""
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except ValueError:
        return False
    return False


def _say_repeated(text: bytes) -> str:
    """Name one repeated member, for whoever has to mend it."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in () if repeated else pairs:
            if name in seen:
                repeated.append(name)
                break
            seen.add(name)

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    name = json.dumps(repeated[0][:100]) if repeated else "a member"
    return f"arguments have the name {name} twice in one object; give each name once"
