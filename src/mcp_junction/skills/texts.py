"""Texts: a tool in the words that it is embedded by. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_READ: Final = 200
"""Characters of a description: what comes later says no more."""
_NAME: Final = 300
_SPLIT: Final = re.compile(r"[_\-./:\s]+|(?<=[a-z0-9])(?=[A-Z])")


class _Told(msgspec.Struct):
    title: Any = None
    description: Any = None


_decode = msgspec.json.Decoder(_Told).decode


def text_of(name: str, definition: bytes) -> str:
    """A tool's name, as words, and the beginning of what its server says of it."""
    try:
        told = _decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        told = _Told()
    said = [part for part in (told.title, told.description) if isinstance(part, str)]
    words = " ".join(part for part in _SPLIT.split(name[:_NAME]) if part)
    return f"{words}. {' '.join(said)[:_READ]}".encode(errors="replace").decode()
