"""Memo: answers to what is asked for every row, of the few names that come in nearly all rows.

A subscript costs a third of a call. Not for texts that do not recur, and no place for long ones:
those are answered and not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

MOST: Final = 4_096
LONGEST: Final = 100


class Memo(dict[str, T]):
    """What ``answer`` gives for a text; it must be pure. When it is full it begins anew."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Callable[[str], T]) -> None:
        self._answer = answer

    def __missing__(self, text: str) -> T:
        answer = self._answer(text)
        if len(text) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[text] = answer
        return answer
