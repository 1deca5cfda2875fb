"""Which names stand for secrets: what is kept under them is never shown, logged or recorded."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

SECRET_WORDS: Final = (
    "password",
    "token",
    "secret",
    "key",
    "credential",
    "authorization",
    "cookie",
)
"""In any part of a name, in any case."""


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether this name stands for a secret. Names recur: the answer is kept."""
    return names_secret(name)


_WITH_K: Final = tuple(word for word in SECRET_WORDS if "k" in word)
_WITHOUT: Final = tuple(word for word in SECRET_WORDS if "k" not in word)
# To go from one k to the next is faster than to look for words that are as short as these.
_FROM_K: Final = re.compile(f"k(?:{'|'.join(word.partition('k')[2] for word in _WITH_K)})")


def names_secret(text: str) -> bool:
    """Whether a secret's name is anywhere in a text."""
    lowered = text.lower()
    words = _WITHOUT if _FROM_K.search(lowered) is None else SECRET_WORDS
    for word in words:  # noqa: SIM110 - a generator costs more than the search
        if word in lowered:
            return True
    return False
