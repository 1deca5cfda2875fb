"""Which names stand for secrets: what is kept under them is never shown, logged or recorded."""

from __future__ import annotations

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


def names_secret(text: str) -> bool:
    """Whether a secret's name is anywhere in a text."""
    lowered = text.lower()
    for word in SECRET_WORDS:  # noqa: SIM110 - a generator costs more than the search
        if word in lowered:
            return True
    return False
