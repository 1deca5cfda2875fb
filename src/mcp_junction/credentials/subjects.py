"""Subjects: under which name a principal has its own credential for a server.

The operator's credential is the shared one; an agent has its own; a caller whose access token is
exchanged is known by that token. Names and types only: tokens are exchanged in ``exchange.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from mcp_junction.policy.principal import Principal

SHARED: Final = "shared"
TOKEN_KEY: Final = "token:"
"""What the ``key`` of a principal begins with that showed an access token."""
_AGENT: Final = "agent:"


def subject_of(principal: Principal) -> str:
    """Name the subject that a principal is to a server where each agent has its own credential."""
    if principal.acting_for:
        return _AGENT + principal.acting_for
    is_operator = principal.role.value in ("owner", "admin")
    return SHARED if is_operator else _AGENT + principal.id


def exchange_subject(principal: Principal) -> str:
    """Name the subject of a caller by its access token and what that gives; empty without one.

    Not by its agent: several people may call as one.
    """
    if principal.acting_for or not principal.key.startswith(TOKEN_KEY):
        return ""
    return f"{principal.key}#{principal.grantee}" if principal.grantee else principal.key


def agent_subject(agent_id: str) -> str:
    """Name the subject of an agent."""
    return _AGENT + agent_id


def agent_of(subject: str) -> str | None:
    """Return the agent of a subject; None for the shared one."""
    return subject.removeprefix(_AGENT) if subject.startswith(_AGENT) else None


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
