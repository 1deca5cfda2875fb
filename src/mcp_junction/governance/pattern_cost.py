"""Pattern cost: what a regular expression costs to compile, and how its counts multiply. Pure.

An engine without backtracking takes time in proportion to the text and to the states of the
pattern; but where a counted repetition is repeated by count again, as in ``(a{0,300}){0,20}``, it
also has to go through many states for each character. To compile a pattern takes time in proportion
to its states: whatever is counted is compiled that often, and a class of Unicode has hundreds.
"""

from __future__ import annotations

import re
from typing import Final

_PIECES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(?:,(\d*))?\}|[()]", re.DOTALL)
"""What matters: escapes and classes, to be passed over; counts; and groups."""
_MOST: Final = 10**9
_TOKENS: Final = re.compile(
    r"\\[pP](?:\{[^}]*\})?|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(?:,(\d*))?\}|.", re.DOTALL
)
_PATTERN: Final = 150
_WIDE: Final = 25
"""What a class costs that holds characters beyond ASCII, as the dot does."""
_PROPERTY: Final = 700
"""What a class of Unicode characters costs, such as all letters."""
_FOLDED: Final = 9_000
"""What a class costs besides where upper and lower case count as the same."""
_WORST: Final = 24_000
"""What a pattern costs at most but for that: the engine gives up at a size."""
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_CLASSES: Final = re.compile(r"\\[pPwWdDsS]|\[")


def count_nested_repeats(pattern: str) -> int:
    """Return the largest product of counts that apply to each other; 0 where none do."""
    groups = [1]
    """For each open group, the largest product of counts within."""
    closed, ended_at, worst = 1, -1, 0
    for piece in _PIECES.finditer(pattern):
        text = piece.group()
        if text == "(":
            groups.append(1)
        elif text == ")":
            closed, ended_at = groups.pop() if len(groups) > 1 else 1, piece.end()
            groups[-1] = max(groups[-1], closed)
        elif text[0] == "{":
            count = _read_count(piece.group(1), piece.group(2))
            within = closed if piece.start() == ended_at else 1
            product = min(count * within, _MOST)
            groups[-1] = max(groups[-1], product)
            if within > 1 and count > 1:
                worst = max(worst, product)
            closed, ended_at = product, piece.end()  # it may be counted again
    return worst


def _read_count(least: str | None, most: str | None) -> int:
    """Return how often at most, or at least where there is no limit."""
    digits = most or least or "1"
    return min(int(digits[:10]), _MOST)


def weigh_pattern(pattern: str) -> int:
    """Return how many bytes of a plain schema take as long to compile as this pattern does."""
    groups, last = [0], 0
    for piece in _TOKENS.finditer(pattern):
        text = piece.group()
        if text == "(":
            groups.append(0)
        elif text == ")":
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif text[0] == "{" and len(text) > 1:
            more = min(last * max(_read_count(piece.group(1), piece.group(2)) - 1, 0), _MOST)
            groups[-1] += more
            last += more
        elif text not in "*+?":  # what these repeat is compiled once
            last = _weigh_token(text)
            groups[-1] += last
    weight = _PATTERN + min(sum(groups), _WORST)
    if _IGNORES_CASE.search(pattern):
        weight += _FOLDED * len(_CLASSES.findall(pattern))
    return weight


def _weigh_token(text: str) -> int:
    properties = text.count("\\p") + text.count("\\P")
    if properties:
        return properties * _PROPERTY
    if text[0] == "[":
        is_wide = text[1] == "^" or not text.isascii() or "\\" in text
        return len(text) + _WIDE if is_wide else 2 + len(text) // 8
    return _WIDE if text == "." or (text[0] == "\\" and text[-1] in "WDSwds") else 1
