"""Token answers: what an issuer's answer to a token request means, and how long a token is good.

A lifetime that is not given is not made up: a JWT's own ``exp`` is a hint, and else the first 401
tells. Only ``invalid_grant`` ends a grant: everything else may be an outage.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from mcp_junction.errors import OAuthError

STEP: Final = "token request"
INVALID_GRANT: Final = "invalid_grant"
INVALID_CLIENT: Final = "invalid_client"
_FINAL: Final = (400, 401)
_CODE: Final = re.compile(r"[a-z][a-z_]{0,59}")
_LONGEST: Final = 65_536
_LONGEST_LIFE: Final = 10 * 366 * 86_400.0
_LATEST: Final = 1e12
"""A time that no token lives to see: an issuer may write numbers of any size."""
RENEW_SHARE: Final = 0.2
"""The part of a token's life before its end in which it is renewed."""
RENEW_MOST: Final = 300.0


class TokenAnswer(msgspec.Struct, frozen=True):
    """A token as an issuer gave it out."""

    access: str
    refresh: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    """When it ends, in seconds since 1970 by our clock; None when that is not known."""

    def __repr__(self) -> str:
        """Without the tokens."""
        return "TokenAnswer(…)"


def read_token_answer(
    status: int,
    kind: str,
    body: bytes,
    host: str,
    now: float,
    *,
    refresh: str = "",
    scopes: tuple[str, ...] = (),
) -> TokenAnswer:
    """Read the answer to a token request. Raises OAuthError.

    ``refresh`` and ``scopes`` are those of before: an answer that leaves them out keeps them.
    """
    found = _decode(kind, body)
    code = found.get("error")
    if isinstance(code, str) and code:
        raise OAuthError(STEP, host, f"it refused: {read_code(code)}", read_code(code), status)
    if status != 200:
        raise OAuthError(STEP, host, f"it answered HTTP {status}", "", status)
    access = found.get("access_token")
    if not isinstance(access, str) or not access:
        raise OAuthError(STEP, host, "its answer has no access_token", "", status)
    if not is_sendable(access):
        raise OAuthError(STEP, host, "its access_token cannot be sent in a header", "", status)
    named = found.get("token_type", "Bearer")
    if not isinstance(named, str) or named.lower() != "bearer":
        raise OAuthError(STEP, host, "its token is of a type that we cannot use", "", status)
    newer, granted = found.get("refresh_token"), found.get("scope")
    return TokenAnswer(
        access,
        newer if isinstance(newer, str) and newer else refresh,
        tuple(granted.split()) if isinstance(granted, str) and granted.strip() else scopes,
        _find_end(found.get("expires_in"), access, now),
    )


def is_grant_over(error: OAuthError) -> bool:
    """Whether an issuer says that a grant is good no more; nothing else does."""
    return error.code == INVALID_GRANT and error.status in _FINAL


def is_client_unknown(error: OAuthError) -> bool:
    """Whether an issuer no longer knows our registration."""
    return error.code == INVALID_CLIENT and error.status in _FINAL


def is_sendable(token: str) -> bool:
    """Whether a token consists of visible ASCII alone, so that it can be a header's value."""
    return 0 < len(token) <= _LONGEST and all("!" <= char <= "~" for char in token)


def renewal_time(issued_at: float, expires_at: float, jitter: float) -> float:
    """Return when to renew a token; ``jitter``, from 0 to 1, makes processes differ."""
    ahead = min((expires_at - issued_at) * RENEW_SHARE, RENEW_MOST)
    return expires_at - ahead * (1 + 0.25 * jitter)


def _find_end(life: Any, access: str, now: float) -> float | None:
    if isinstance(life, str):
        try:
            life = float(life)
        except ValueError:
            life = None
    if isinstance(life, bool) or not isinstance(life, int | float) or life != life:
        hint = _jwt_end(access)
        return min(hint, now + _LONGEST_LIFE) if hint is not None and hint > now else None
    return now + float(min(max(life, 0), _LONGEST_LIFE))


def _jwt_end(token: str) -> float | None:
    """Read ``exp`` of a JWT, unverified: a hint when to renew it, and nothing else."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims = msgspec.json.decode(base64.urlsafe_b64decode(padded))
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    if isinstance(end, bool) or not isinstance(end, int | float):
        return None
    return float(min(end, _LATEST))


def _decode(kind: str, body: bytes) -> dict[str, Any]:
    if kind.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
        return dict(parse_qsl(body.decode("latin-1")))
    return decode_object(body) or {}


def decode_object(body: bytes) -> dict[str, Any] | None:
    """Decode a JSON object that an issuer or a server has sent; None when it is no such thing."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_code(code: str) -> str:
    """Return OAuth's code of an error; what is none is not repeated: it may be a secret."""
    return code if _CODE.fullmatch(code) else "an unreadable error"
