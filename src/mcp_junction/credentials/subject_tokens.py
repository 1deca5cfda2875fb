"""SubjectTokens: what exchanging callers' access tokens needs to know of them. Types only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from mcp_junction.policy.principal import Principal


class SubjectToken(msgspec.Struct, frozen=True):
    """An access token that a caller has shown."""

    text: str
    expires_at: float
    scopes: int
    """How many it has."""

    def __repr__(self) -> str:
        """Without the token."""
        return "SubjectToken(…)"


class SubjectTokens(Protocol):
    """Knows the access tokens that callers have shown."""

    def held_by(self, is_meant: Callable[[Principal], bool]) -> list[SubjectToken]:
        """The tokens of those who are meant, that are good now."""
        ...
