"""Token: what a high-risk call needs beside its grant, by the token mode of that grant.

``check_tokens`` says whether a call passes, and which token it will have to spend; it spends none.
Tokens are checked in ``authorize`` and spent in ``admit``, after the idempotency look-up, in the
transaction of the first intent: only the store can tell which of two racing calls wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

import msgspec

PREFIX: Final = "jtk"
"""What the text of every token begins with."""
DEFAULT_TTL: Final = 15 * 60.0
"""Seconds that a token is good for, unless its grant or the settings say otherwise."""


class TokenMode(StrEnum):
    """When a high-risk call passes by a grant."""

    NONE = "none"  # always; only an administrator may give it
    WINDOW = "window"  # while an unexpired token of the grant exists
    PRESENT = "present"  # when it carries such a token
    SINGLE_USE = "single_use"  # when it carries one that was not used
    APPROVAL = "approval"  # when a person approved this very call


# Before Python 3.12 finding a member of an enum runs Python code: the call path uses these.
NONE: Final = TokenMode.NONE
WINDOW: Final = TokenMode.WINDOW
PRESENT: Final = TokenMode.PRESENT
SINGLE_USE: Final = TokenMode.SINGLE_USE
APPROVAL: Final = TokenMode.APPROVAL


class Token(msgspec.Struct, frozen=True, gc=False):
    """A token of a grant. Its secret is known by its hash only."""

    id: str
    grant_id: str
    sha256: str
    created_at: float
    expires_at: float
    used_at: float | None = None
    revoked_at: float | None = None

    def is_live(self, now: float) -> bool:
        """Whether it is neither expired nor revoked; it may have been used."""
        return self.revoked_at is None and now < self.expires_at


class PresentedToken(NamedTuple):
    """The token that a call carries."""

    id: str
    sha256: str


class TokenCheck(msgspec.Struct, frozen=True):
    """Whether a high-risk call passes by one grant, and what it takes."""

    passes: bool
    missing: str = ""
    """What the call lacks, and what to do about it."""
    token: str = ""
    """The id of the token that lets it pass."""
    spends: bool = False
    """Whether that token has to be spent before the call is sent."""
    replay_only: bool = False
    """Whether the token was used before: the call may be answered from its idempotency record, and
    may not be sent."""
    until: float | None = None
    """Until when the same call passes again; None when that has to be checked each time."""


_FREE: Final = TokenCheck(True, until=float("inf"))
_NOT_CARRIED: Final = TokenCheck(
    False, 'the call carries no token; send the grant\'s as token, or as _meta["junction/token"]'
)
_NOT_OF_GRANT: Final = TokenCheck(
    False, "the token that the call carries is not one of this grant; send the grant's own"
)
_EXPIRED: Final = TokenCheck(
    False, "the token that the call carries has expired or was revoked; have it renewed"
)
_USED: Final = TokenCheck(
    False, "the token that the call carries was used before; have a new one made"
)
_NO_WINDOW: Final = TokenCheck(
    False,
    "no unexpired token of the grant exists; have it renewed: POST /api/v1/mcp/policies/{id}/token",
)
_APPROVED_LATER: Final = TokenCheck(True)


def check_tokens(
    mode: TokenMode,
    tokens: Iterable[Token],
    presented: PresentedToken | None,
    now: float,
    *,
    has_idempotency_key: bool = False,
) -> TokenCheck:
    """Check whether a high-risk call passes by a grant that has this mode and these tokens.

    A call that repeats an idempotency key shows a single-use token that its first try has used. It
    passes here as ``replay_only``, because its record can only be looked up later.
    """
    if mode is NONE:
        return _FREE
    if mode is WINDOW:
        live = [token for token in tokens if token.is_live(now)]
        if not live:
            return _NO_WINDOW
        latest = max(live, key=lambda token: token.expires_at)
        return TokenCheck(True, token=latest.id, until=latest.expires_at)
    if mode is APPROVAL:
        return _APPROVED_LATER  # ``admit`` asks the store, which alone has approvals
    if presented is None:
        return _NOT_CARRIED
    token = _find(tokens, presented)
    if token is None:
        return _NOT_OF_GRANT
    if mode is PRESENT:
        return TokenCheck(True, token=token.id) if token.is_live(now) else _EXPIRED
    if token.used_at is not None:
        return TokenCheck(True, token=token.id, replay_only=True) if has_idempotency_key else _USED
    return TokenCheck(True, token=token.id, spends=True) if token.is_live(now) else _EXPIRED


def read_token(text: str) -> PresentedToken | None:
    """Read the text of a token; None when it is not of that form."""
    parts = text.split("_", 2)
    if len(parts) != 3 or parts[0] != PREFIX or not parts[1] or not parts[2]:
        return None
    return PresentedToken(parts[1], hash_secret(parts[2]))


def write_token(token_id: str, secret: str) -> str:
    """Return the text of a token, which is shown once."""
    return f"{PREFIX}_{token_id}_{secret}"


def hash_secret(secret: str) -> str:
    """Return what is kept of a token's secret."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _find(tokens: Iterable[Token], presented: PresentedToken) -> Token | None:
    for token in tokens:
        if token.id == presented.id:
            return token if compare_digest(token.sha256, presented.sha256) else None
    return None
