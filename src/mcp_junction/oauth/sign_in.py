"""Sign-in: what a browser is sent to an issuer with, and what it may come back with.

Also which scopes are asked for: those of the challenge, else those that the server lists, else
none; and what a later challenge adds to them.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from mcp_junction.errors import OAuthError
from mcp_junction.oauth.discovery import IssuerMetadata
from mcp_junction.oauth.tokens import read_code

STEP: Final = "sign-in"
OFFLINE: Final = "offline_access"
MAX_STEP_UPS: Final = 3
"""How often more scopes are asked for before a server's wish counts as final."""


class Pkce(NamedTuple):
    """A secret that only the one who began a sign-in knows, and its hash."""

    verifier: str
    challenge: str


class SignInRequest(msgspec.Struct, frozen=True):
    """What a browser is sent to an issuer with."""

    client_id: str
    redirect_uri: str
    state: str
    challenge: str
    scopes: tuple[str, ...] = ()
    resource: str = ""


def make_pkce() -> Pkce:
    """Make a new secret, and its challenge by S256."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    return Pkce(verifier, base64.urlsafe_b64encode(digest).rstrip(b"=").decode())


def choose_scopes(
    wanted: Iterable[str], challenged: Iterable[str], offered: Iterable[str], issuer: IssuerMetadata
) -> tuple[str, ...]:
    """Choose the scopes to ask for: the operator's, the challenge's, or all that a server lists."""
    chosen = tuple(wanted) or tuple(challenged) or tuple(offered)
    if OFFLINE in issuer.scopes:
        chosen = (*chosen, OFFLINE)
    return tuple(dict.fromkeys(chosen))


def step_up(asked: Iterable[str], challenged: Iterable[str]) -> tuple[str, ...] | None:
    """Add the scopes of a challenge to those asked for; None when it asks for nothing new."""
    before = tuple(asked)
    union = tuple(dict.fromkeys((*before, *challenged)))
    return union if len(union) > len(set(before)) else None


def authorization_url(endpoint: str, request: SignInRequest) -> str:
    """Make the address that a browser is sent to; what the endpoint's query has already stays."""
    parts = urlsplit(endpoint)
    query = [
        *parse_qsl(parts.query, keep_blank_values=True),
        ("response_type", "code"),
        ("client_id", request.client_id),
        ("redirect_uri", request.redirect_uri),
        ("state", request.state),
        ("code_challenge", request.challenge),
        ("code_challenge_method", "S256"),
    ]
    if request.scopes:
        query.append(("scope", " ".join(request.scopes)))
    if OFFLINE in request.scopes:
        query.append(("prompt", "consent"))
    if request.resource:
        query.append(("resource", request.resource))
    return urlunsplit(parts._replace(query=urlencode(query), fragment=""))


def read_callback(url_query: str) -> dict[str, str]:
    """Read the query of a callback; a name that is given twice counts as not given."""
    pairs = parse_qsl(url_query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


def take_code(answer: Mapping[str, str], issuer: str, host: str, *, names_itself: bool) -> str:
    """Return the code of a callback whose state is ours. Raises OAuthError.

    An answer that another issuer gave is refused before anything of it is looked at or shown.
    """
    named = answer.get("iss")
    if named is not None and named != issuer:
        raise OAuthError(STEP, host, "the answer came from another issuer than the one asked")
    if named is None and names_itself:
        raise OAuthError(STEP, host, "the answer does not say which issuer it is from")
    if "error" in answer:
        code = read_code(answer["error"])
        raise OAuthError(STEP, host, f"it refused: {code}", code)
    if not answer.get("code"):
        raise OAuthError(STEP, host, "the answer has no code")
    return answer["code"]
