"""Which names stand for secrets: what is kept under them is never shown, logged or recorded."""

from __future__ import annotations

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


def is_secret(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in SECRET_WORDS)
