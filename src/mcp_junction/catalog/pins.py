"""Pins: the canonical form of a tool's definition, its hash, and how two of them differ.

A definition is what a client acts on: name, title, description, schemas, annotations. Two of them
are the same when they mean the same: the order of members, white space, escapes and the spelling of
numbers (1, 1.0, 1e0) make no difference. What cannot be read in one way only (a key given twice,
bad UTF-8) is hashed as the bytes it is, and flagged.

All pure. What becomes of a tool whose hash is not the pinned one is in ``policy/pinning.py``; what
hides in a definition and whom it imitates in ``suspicion.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

PINNED: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")

_encoder = msgspec.json.Encoder(order="sorted")
_decode = msgspec.json.Decoder().decode
_WHOLE_FLOAT = re.compile(rb"[0-9]\.0[,}\]]")
_SECURE_INT: Final = 2**53


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool's definition in its one canonical form."""

    hash: str
    text: bytes
    """Sorted JSON of the pinned members; what the next one is compared with."""
    is_plain: bool = True
    """Whether it can be read in one way only."""


class DefinitionChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference: where (a JSON pointer), and what was and is there, as JSON."""

    op: str
    path: str
    before: Raw | None = None
    after: Raw | None = None

    def __str__(self) -> str:
        if self.op == "add":
            return f"+ {self.path}: {_shown(self.after)}"
        if self.op == "remove":
            return f"- {self.path}: {_shown(self.before)}"
        return f"~ {self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def define(members: Mapping[str, Raw | bytes]) -> ToolDefinition:
    """The canonical form of a tool, from its members as its server wrote them."""
    pinned = {name: members[name] for name in PINNED if name in members}
    joined = _encoder.encode(
        {name: raw if isinstance(raw, Raw) else Raw(raw) for name, raw in pinned.items()}
    )
    try:
        text = _encoder.encode(_decode(joined))
        if b".0" in text and _WHOLE_FLOAT.search(text):
            text = _encoder.encode(_same_numbers(_decode(text)))
        if not _says_keys_twice(joined, text):
            return ToolDefinition(hashlib.sha256(text).hexdigest(), text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        text = _encoder.encode(joined.decode("utf-8", "replace"))
    return ToolDefinition(hashlib.sha256(b"raw:" + joined).hexdigest(), text, is_plain=False)


def diff(before: bytes, after: bytes) -> tuple[DefinitionChange, ...]:
    """What is different between two canonical texts, in the order of paths."""
    return tuple(_differences("", _decode(before), _decode(after)))


def _differences(path: str, before: Any, after: Any) -> Iterator[DefinitionChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _member(f"{path}/{escape_key(key)}", key, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        old, new = dict(enumerate(before)), dict(enumerate(after))
        for index in range(max(len(before), len(after))):
            yield from _member(f"{path}/{index}", index, old, new)
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield DefinitionChange("replace", path, _raw(before), _raw(after))


def _member(
    path: str, key: Any, before: Mapping[Any, Any], after: Mapping[Any, Any]
) -> Iterator[DefinitionChange]:
    if key not in before:
        yield DefinitionChange("add", path, after=_raw(after[key]))
    elif key not in after:
        yield DefinitionChange("remove", path, before=_raw(before[key]))
    else:
        yield from _differences(path, before[key], after[key])


def escape_key(key: str) -> str:
    """Escape a member's name for a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _raw(value: Any) -> Raw:
    return Raw(_encoder.encode(value))


def _shown(raw: Raw | None) -> str:
    text = json.dumps(_decode(raw)) if raw is not None else ""  # ASCII: nothing can hide in it
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def _same_numbers(value: Any) -> Any:
    """With whole numbers written as such."""
    if isinstance(value, dict):
        return {key: _same_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_same_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _SECURE_INT:
        return int(value)
    return value


def _says_keys_twice(written: bytes, text: bytes) -> bool:
    """Whether something was lost in reading: then different readers see different definitions.

    Without escapes of code points, each string has as many quotes written as read. With them they
    could make up for a lost key, and the slow way is taken.
    """
    if b"\\u" not in written:
        return written.count(b'"') != text.count(b'"')
    return _any_twice(written)


def _any_twice(written: bytes) -> bool:
    found = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        made = dict(items)
        found = found or len(made) != len(items)
        return made

    json.loads(written, object_pairs_hook=pairs)
    return found
