"""Instructions: cleans and joins the ``instructions`` that servers send for clients.

The texts are not trusted: characters that hide or reorder text are removed and each is bounded.
Those of several servers are joined under the servers' names within a budget of tokens; the longest
ones are shortened first, and a note says which. Which servers a client sees is decided elsewhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from mcp_junction.catalog.suspicion import HIDDEN

MAX_BYTES: Final = 16 * 1024
"""The most of one server's instructions, in UTF-8."""
_BYTES_PER_TOKEN: Final = 4
_LEAST: Final = 160
"""No text is cut to less than this many bytes: then fewer servers are shown."""
_NAMED: Final = 8
_LONGEST_NAME: Final = 64
_CUT: Final = "…"
_HEADING: Final = re.compile(r"^ {0,3}#{1,2}(?=\s)", re.MULTILINE)
"""The headings that a text must not have among those of ours."""


@lru_cache(1024)
def clean(text: str) -> str:
    """The instructions of one server without hidden characters, and of bounded length."""
    plain = HIDDEN.sub("", text[: 2 * MAX_BYTES].replace("\r\n", "\n").replace("\r", "\n")).strip()
    return _cut(plain, MAX_BYTES)


@lru_cache(64)
def join(texts: tuple[tuple[str, str], ...], tokens: int) -> str:
    """The instructions of several servers under their names; ``tokens`` bounds the whole.

    ``texts`` are pairs of a server's name and its cleaned instructions.
    """
    budget = tokens * _BYTES_PER_TOKEN
    parts = [(_name(key), _HEADING.sub("###", text)) for key, text in texts if text]
    whole = _put_together(parts)
    if _size(whole) <= budget:
        return whole
    room = budget - _size(_note([name for name, _ in parts]))
    shown = parts[: max(0, room) // (_LEAST + _LONGEST_NAME)]
    room -= sum(_size(_put_together([(name, "")])) + 2 for name, _ in shown)
    limit = _fair_share([_size(text) for _, text in shown], room)
    cut = [(name, _cut(text, limit)) for name, text in shown]
    short = [name for (name, text), after in zip(shown, cut, strict=True) if text != after[1]]
    short += [name for name, _ in parts[len(shown) :]]
    if not shown:
        return ""
    return f"{_put_together(cut)}\n\n{_note(short)}"


def _put_together(parts: list[tuple[str, str]]) -> str:
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in parts)


def _note(names: list[str]) -> str:
    listed = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    where = "each server's own endpoint has them whole"
    return f"(Shortened or left out for length: {listed}{more}; {where}.)"


def _fair_share(sizes: list[int], room: int) -> int:
    """The largest limit under which texts of these sizes fit: short ones leave theirs to others."""
    left = max(0, room)
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _cut(text: str, limit: int) -> str:
    """As much of a text as fits into so many bytes, to the end of a word."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    kept = data[: max(0, limit - len(_CUT.encode()))].decode("utf-8", "ignore")
    head, space, _ = kept.rpartition(" ")
    return (head if space and len(head) > len(kept) // 2 else kept).rstrip() + _CUT


def _name(key: str) -> str:
    return " ".join(HIDDEN.sub("", key).split())[:_LONGEST_NAME]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
