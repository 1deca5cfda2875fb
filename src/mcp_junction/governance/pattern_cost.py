"""Pattern cost: how often the parts of a regular expression are repeated inside each other. Pure.

An engine without backtracking takes time in proportion to the text and to the states of the
pattern; but where a counted repetition is repeated by count again, as in ``(a{0,300}){0,20}``, it
also has to go through many states for each character.
"""

from __future__ import annotations

import re
from typing import Final

_PIECES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(?:,(\d*))?\}|[()]", re.DOTALL)
"""What matters: escapes and classes, to be passed over; counts; and groups."""
_MOST: Final = 10**9


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
