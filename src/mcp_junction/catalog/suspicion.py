"""Flags suspicious tools: hidden characters, and names that imitate another server's tool.

Flags are for people to look at: they say what and where, and decide nothing (``pins.py`` does). Of
two servers with like tools the one that comes later is flagged; a name of ordinary words in a
description counts only where it is written as a name, for "search" alone means nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from mcp_junction.catalog.pins import ToolDefinition, escape_key
from mcp_junction.protocol.names import Pair

_decode = msgspec.json.Decoder().decode


class Reason(StrEnum):
    HIDDEN_CHARACTERS = "hidden_characters"
    AMBIGUOUS = "ambiguous"  # a key twice, or bytes that are no text
    SAME_NAME = "same_name"
    LOOKALIKE_NAME = "lookalike_name"
    REFERS_TO = "refers_to"


NAMING_OTHERS: Final = frozenset({Reason.SAME_NAME, Reason.LOOKALIKE_NAME, Reason.REFERS_TO})
"""The reasons whose flags name another tool."""


class Flag(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding about a tool, for a person to look at."""

    reason: Reason
    detail: str
    path: str = ""
    other: str = ""
    """The tool that is imitated or named, in the canonical spelling."""


class ExaminedTool(NamedTuple):
    """A tool to examine: whose it is, and its definition."""

    pair: Pair
    definition: ToolDefinition


# Zero-width and joining, bidi, invisible operators, fillers, interlinear, tags, variation
# selectors, and the controls, also those that move a terminal's cursor.
HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINERS: Final = "\u200c\u200d"
_EMOJI_STYLE: Final = "\ufe0f"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*[A-Za-z0-9]")
_TITLED: Final = re.compile(r"[_.:/\d-]|[a-z][A-Z]")
_QUOTED: Final = re.compile(r"[`'\"“‘]([A-Za-z0-9]+)[`'\"”’]")
_DESCRIPTION: Final = re.compile(rb'"(?:description|title)":"((?:[^"\\]|\\.)*+)"')
_TO_WORDS: Final = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or chr(byte) in "_.:/-" else 0x20
    for byte in range(256)
)
_BREAK: Final = re.compile(rb"\\[bfnrt]")
_LOOKS_LIKE: Final = str.maketrans(
    {
        **dict(zip("аеорсухіјѕһԁԛԝгкмнтвзпєѵ", "aeopcyxijshdqwrkmhtb3nev", strict=True)),
        **dict(zip("αεικνορτυχγηωβμ", "aeiknoptuxynwbu", strict=True)),
        **dict(zip("ıɩɡɑƖοⅼցոս", "iigaloIgnu".lower(), strict=True)),
        "0": "o",
        "1": "l",
        "i": "l",
        "|": "l",
        "-": "_",
        ".": "_",
        "/": "_",
        " ": "_",
        ":": "_",
    }
)


def skeleton(name: str) -> str:
    """Reduce a name to what it looks like: names easily confused have the same skeleton."""
    if not name.isascii():
        name = "".join(c for c in unicodedata.normalize("NFKD", name) if not _is_unseen(c))
    return name.casefold().translate(_LOOKS_LIKE)


def find_hidden(definition: ToolDefinition) -> list[Flag]:
    """Flag characters that a person does not see, anywhere in a definition."""
    flags = []
    if not definition.is_plain:
        flags.append(Flag(Reason.AMBIGUOUS, "different readers would read it differently"))
    text = definition.text
    if text.isascii() and b"\\u" not in text and b"\x7f" not in text:
        return flags
    for path, words in _iterate_texts("", _decode(text)):
        found = sorted({f"U+{ord(char):04X}" for char in _find_hidden_in(words)})
        if found:
            flags.append(Flag(Reason.HIDDEN_CHARACTERS, ", ".join(found[:20]), path))
    return flags


def examine(
    tools: Iterable[ExaminedTool],
    iterate: Callable[[Iterable[ExaminedTool]], Iterable[ExaminedTool]] = iter,
) -> dict[Pair, list[Flag]]:
    """Return the flags of all tools that have any. Tools come in the order of their servers.

    ``iterate`` goes through the tools; it may pause between them (``slices.pace``).
    """
    tools = list(iterate(tools))
    names = _ToolNames([tool.pair for tool in tools])
    found = {}
    for tool in iterate(tools):
        flags = find_hidden(tool.definition)
        flags += names.flag_imitation(tool.pair)
        flags += names.flag_references(tool)
        if flags:
            found[tool.pair] = flags
    return found


class _ToolNames:
    """The names of all tools of all servers, to compare one tool with."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._first: dict[str, Pair] = {}
        self._owners: dict[str, dict[str, Pair]] = {}
        for pair in pairs:
            self._first.setdefault(skeleton(pair.name), pair)
            self._owners.setdefault(pair.name, {})[pair.server] = pair
        self._spelled = {
            f"{pair.server}{joint}{pair.name}": pair
            for pair in pairs
            for joint in (":", ".", "__", "/")
        }
        self._known = {*self._owners, *self._spelled}
        self._written = {name.encode("utf-8", "replace") for name in self._known}

    def flag_imitation(self, pair: Pair) -> list[Flag]:
        first = self._first[skeleton(pair.name)]
        if first.server == pair.server:
            return []
        other = ".".join(first)
        if first.name == pair.name:
            return [Flag(Reason.SAME_NAME, "an earlier server has this name", "/name", other)]
        return [Flag(Reason.LOOKALIKE_NAME, "looks like an earlier server's", "/name", other)]

    def flag_references(self, tool: ExaminedTool) -> list[Flag]:
        """Flag each tool of another server that is named in its descriptions."""
        if not self._may_refer(tool):
            return []
        described = _descriptions(tool.definition)
        words = _NAME.findall(described)
        found = {}
        for word in self._known.intersection(words):
            if _TITLED.search(word) or _is_written_as_name(word, words, described):
                other = self._find_foreign(tool.pair, word)
                if other is not None:
                    found[".".join(other)] = _locate(word, tool.definition)
        return [
            Flag(Reason.REFERS_TO, "it speaks of another server's tool", found[other], other)
            for other in sorted(found)
        ]

    def _may_refer(self, tool: ExaminedTool) -> bool:
        """Whether the name of another server's tool occurs at all: a fast first check."""
        text = tool.definition.text.replace(b"\\n", b" ").replace(b"\\t", b" ")
        words = text.translate(_TO_WORDS).replace(b". ", b"  ").replace(b": ", b"  ").split()
        return any(
            self._find_foreign(tool.pair, word.decode())
            for word in self._written.intersection(words)
        )

    def _find_foreign(self, pair: Pair, word: str) -> Pair | None:
        spelled = self._spelled.get(word)
        if spelled is not None and spelled.server != pair.server:
            return spelled
        owners: Mapping[str, Pair] = self._owners.get(word, {})
        return None if pair.server in owners else next(iter(owners.values()), None)


def _is_written_as_name(word: str, words: list[str], text: str) -> bool:
    """Whether an ordinary word is written as the name of a tool: quoted, or beside "tool"."""
    if word in _QUOTED.findall(text):
        return True
    beside = {words[i + step] for i, w in enumerate(words) if w == "tool" for step in (-1, 1)
              if 0 <= i + step < len(words)}  # fmt: skip
    return word in beside


def _descriptions(definition: ToolDefinition) -> str:
    """Everything that describes the tool or a part of its schemas, as one text."""
    if not definition.is_plain:
        return definition.text.decode()
    texts = b"\n".join(_DESCRIPTION.findall(definition.text))
    if b"\\" in texts:
        texts = _BREAK.sub(b" ", texts).replace(b'\\"', b'"')
    return texts.decode()


def _locate(word: str, definition: ToolDefinition) -> str:
    """Where a word stands: in the tool's own description, or somewhere below."""
    try:
        own = _decode(definition.text).get("description", "")
    except AttributeError:  # it could not be read, and is kept as one string
        return ""
    return "/description" if word in str(own) else "/inputSchema"


def _iterate_texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every string in a definition, keys too, and where it is."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iterate_texts(f"{path}/{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}/{escape_key(key)}"
            yield below, key
            yield from _iterate_texts(below, item)


def _find_hidden_in(text: str) -> Iterator[str]:
    for match in HIDDEN.finditer(text):
        before, char = text[match.start() - 1 : match.start()], match.group()
        after = text[match.end() : match.end() + 1]
        if not _is_legitimate(before, char, after):
            yield char


def _is_legitimate(before: str, char: str, after: str) -> bool:
    """Whether an invisible character is a proper part of an emoji, or of a script with joiners."""
    if char == _EMOJI_STYLE:
        return bool(before) and (before in "0123456789#*" or _is_symbol(before))
    if char in _JOINERS and before and after:
        if before == _EMOJI_STYLE or _is_symbol(before):
            return _is_symbol(after)
        return min(before, after) > "\u0590" and (after.isalpha() and _is_letter(before))
    return False


def _is_symbol(char: str) -> bool:
    return unicodedata.category(char) in ("So", "Sk", "Sm")


def _is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM"


def _is_unseen(char: str) -> bool:
    return unicodedata.combining(char) > 0 or HIDDEN.match(char) is not None
