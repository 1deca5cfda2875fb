"""NamePattern: matches names and URIs; ``*`` stands for any run of characters, ``?`` for any one.

No other character is special and none can be escaped. Matching takes time linear in the name,
whatever the pattern: the literal parts between the stars are looked for from left to right, once
each, and a part with ``?`` in it is searched for with one integer of a bit per character. There is
no regular expression here, so no pattern makes one backtrack.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_PATTERN: Final = 256
"""Characters of the longest pattern."""


class _Segment(msgspec.Struct, frozen=True):
    """The part of a pattern between two stars."""

    size: int
    literal: str | None
    """The whole of it, when it has no ``?``."""
    runs: tuple[tuple[int, str], ...] = ()
    """Otherwise its literal runs, and where in it each begins."""
    masks: dict[str, int] = {}
    """For each of its characters, a bit for every place where it may stand."""
    open_mask: int = 0
    """The places where any character may stand."""

    def fits(self, name: str, at: int) -> bool:
        """Whether it matches ``name`` at a place, where at least ``size`` characters are left."""
        if self.literal is not None:
            return name.startswith(self.literal, at)
        return all(name.startswith(run, at + offset) for offset, run in self.runs)

    def find(self, name: str, start: int, end: int) -> int:
        """Return the end of its first match within ``name[start:end]``, or -1."""
        if self.literal is not None:
            at = name.find(self.literal, start, end)
            return at + self.size if at >= 0 else -1
        if not self.runs:
            return start + self.size if start + self.size <= end else -1
        mask_of, open_mask, found = self.masks.get, self.open_mask, 1 << (self.size - 1)
        state = 0
        for at, char in enumerate(name[start:end], start + 1):
            state = (state << 1 | 1) & mask_of(char, open_mask)
            if state & found:
                return at
        return -1


class NamePattern(msgspec.Struct, frozen=True):
    """One compiled pattern."""

    text: str
    least: int
    """Characters that a name needs at least."""
    is_exact: bool
    """Whether it matches one name only."""
    has_star: bool
    head: _Segment
    middle: tuple[_Segment, ...]
    tail: _Segment

    def matches(self, name: str) -> bool:
        """Whether a name fits the pattern as a whole."""
        if self.is_exact:
            return name == self.text
        size = len(name)
        if size < self.least or not self.head.fits(name, 0):
            return False
        if not self.has_star:
            return size == self.least
        end = size - self.tail.size
        if not self.tail.fits(name, end):
            return False
        at = self.head.size
        for segment in self.middle:
            at = segment.find(name, at, end)
            if at < 0:
                return False
        return True

    @property
    def literals(self) -> tuple[str, ...]:
        """The literal runs that every name which matches contains."""
        found: list[str] = []
        for segment in (self.head, *self.middle, self.tail):
            if segment.literal is not None:
                found.append(segment.literal)
            else:
                found.extend(run for _, run in segment.runs)
        return tuple(run for run in found if run)


def compile_pattern(text: str) -> NamePattern:
    """Compile a pattern; what is too long is refused where grants are checked, not here."""
    parts = text.split("*")
    head, tail = _segment(parts[0]), _segment(parts[-1] if len(parts) > 1 else "")
    middle = tuple(_segment(part) for part in parts[1:-1] if part)
    return NamePattern(
        text=text,
        least=head.size + tail.size + sum(segment.size for segment in middle),
        is_exact=len(parts) == 1 and "?" not in text,
        has_star=len(parts) > 1,
        head=head,
        middle=middle,
        tail=tail,
    )


def is_exact(text: str) -> bool:
    """Whether a pattern matches one name only."""
    return "*" not in text and "?" not in text


def _segment(text: str) -> _Segment:
    if "?" not in text:
        return _Segment(len(text), text)
    runs: list[tuple[int, str]] = []
    masks: dict[str, int] = {}
    offset = open_mask = 0
    for run in text.split("?"):
        if run:
            runs.append((offset, run))
        offset += len(run) + 1
    for at, char in enumerate(text):
        if char == "?":
            open_mask |= 1 << at
    for at, char in enumerate(text):
        if char != "?":
            masks[char] = masks.get(char, open_mask) | 1 << at
    return _Segment(len(text), None, tuple(runs), masks, open_mask)
