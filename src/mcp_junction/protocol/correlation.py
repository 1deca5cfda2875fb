"""Correlation ids of our own: how they are made, and when one was made.

They begin with the time, so that the audit finds a call by its id without an index of ids. They end
with random digits: a number that counts would tell each caller how many calls others make.
"""

from __future__ import annotations

import itertools
import secrets
import time
from functools import lru_cache
from typing import Final

SAME_BEGINNING: Final = 0.05
"""Seconds for which ids begin with the same time: to write it anew takes longer than the rest."""
_DIGITS: Final = 16
_AT_ONCE: Final = 256
"""Endings that are made at a time: so one costs hardly more than a number that counts."""
_now: Final = time.time
_TIME: Final = 11
"""Hexadecimal digits of the time in milliseconds, until the year 2527."""
BEGINNING: Final = _TIME + 2
"""Characters that an id begins with, which say when it was made."""


class _Beginning:
    """The time that correlation ids begin with at the moment."""

    __slots__ = ("since", "text")

    def __init__(self) -> None:
        self.since = 0.0
        self.text = ""


_beginning: Final = _Beginning()


def _make_endings(_: int) -> list[str]:
    text = secrets.token_hex(_AT_ONCE * _DIGITS // 2)
    return [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]


_next_ending: Final = itertools.chain.from_iterable(map(_make_endings, itertools.count())).__next__


def new_correlation_id() -> str:
    """Make a correlation id; it begins with the time, by which the audit finds it.

    That is the time in milliseconds, in hexadecimal, at most ``SAME_BEGINNING`` too early.
    """
    now = _now()
    if not 0.0 <= now - _beginning.since < SAME_BEGINNING:  # also if the clock was set back
        _beginning.since = now
        _beginning.text = f"j{int(now * 1000):x}-"
    return _beginning.text + _next_ending()


def made_at(correlation_id: str) -> float | None:
    """Return the time in an id of our own; None for any other, as far as that can be told."""
    return read_beginning(correlation_id[:BEGINNING])


@lru_cache(maxsize=256)
def read_beginning(beginning: str) -> float | None:
    """Read the time that an id begins with. Cached: many in a row begin with the same."""
    if beginning[:1] != "j" or beginning[_TIME + 1 :] != "-":
        return None
    try:
        return int(beginning[1:-1], 16) / 1000
    except ValueError:
        return None
