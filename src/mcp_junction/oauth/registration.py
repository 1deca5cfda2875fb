"""Registration: as which client we come to an issuer, and how we prove that.

The order: a client that the operator registered; the URL of our metadata document, where the issuer
takes that; dynamic registration, where it offers that; else the operator is asked to register one.
"""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from mcp_junction.errors import OAuthError
from mcp_junction.oauth.discovery import IssuerMetadata
from mcp_junction.oauth.tokens import decode_object, read_code

STEP: Final = "client registration"
NONE: Final = "none"
BASIC: Final = "client_secret_basic"
POST: Final = "client_secret_post"
JWT: Final = "private_key_jwt"
_LATEST: Final = 1e12
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "[::1]")
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class ClientKind(StrEnum):
    """How an issuer knows us."""

    REGISTERED = "registered"
    """By the operator, beforehand."""
    METADATA = "metadata"
    """By the URL of our metadata document."""
    DYNAMIC = "dynamic"
    """By dynamic registration."""


class OAuthClient(msgspec.Struct, frozen=True):
    """Who we are to one issuer, and how we prove it at its token endpoint."""

    client_id: str
    method: str = NONE
    secret: str = ""
    secret_expires_at: float = 0.0
    """0 for never."""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"OAuthClient({self.client_id!r}, {self.method!r})"


def choose_kind(
    issuer: IssuerMetadata, host: str, *, client_id: str = "", metadata_url: str = ""
) -> ClientKind:
    """Choose how to come to an issuer. Raises OAuthError when only the operator can help."""
    if client_id:
        return ClientKind.REGISTERED
    takes_public = not issuer.auth_methods or NONE in issuer.auth_methods
    if issuer.takes_metadata_urls and takes_public and is_metadata_url(metadata_url):
        return ClientKind.METADATA
    if issuer.registration_endpoint:
        return ClientKind.DYNAMIC
    words = (
        "it takes no clients that it does not know: register one there, and give `client_id`"
        " (and `client_secret`) in the server's `auth`"
    )
    raise OAuthError(STEP, host, words)


def is_metadata_url(url: str) -> bool:
    """Whether a URL can be the id of a client: https, with a path."""
    parts = urlsplit(url)
    return parts.scheme == "https" and bool(parts.netloc) and len(parts.path) > 1


def is_loopback_url(url: str) -> bool:
    """Whether a redirect goes to the machine of the browser itself."""
    return (urlsplit(url).hostname or "") in _LOOPBACK


def registered_client(
    client_id: str, secret: str, method: str, issuer: IssuerMetadata
) -> OAuthClient:
    """Return the client that the operator registered, with the method that suits the issuer."""
    if not method:
        offered = issuer.auth_methods or (BASIC,)
        method = NONE
        if secret:
            method = BASIC if BASIC in offered or POST not in offered else POST
    return OAuthClient(client_id, method, secret)


def client_metadata(name: str, redirect_uris: list[str], method: str = NONE) -> dict[str, Any]:
    """Describe us to an issuer, for dynamic registration and for our metadata document."""
    is_native = all(map(is_loopback_url, redirect_uris))
    return {
        "client_name": name,
        "redirect_uris": redirect_uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native" if is_native else "web",
    }


def choose_auth_method(issuer: IssuerMetadata) -> str:
    """Choose the method to register with: the first of ours that the issuer offers.

    A secret goes into the form where it may: how Basic is read differs between issuers.
    """
    offered = issuer.auth_methods or (BASIC,)
    return next((method for method in (NONE, POST, BASIC) if method in offered), NONE)


def read_registered(status: int, body: bytes, asked: str, host: str) -> OAuthClient:
    """Read the answer to a dynamic registration. Raises OAuthError for one of no use."""
    found = decode_object(body) or {}
    if status not in (200, 201):
        code = found.get("error")
        words = (
            f"it refused to register us (HTTP {status}); register a client there yourself, and"
            " give `client_id` in the server's `auth`"
        )
        code = read_code(code) if isinstance(code, str) else ""
        raise OAuthError(STEP, host, words, code, status)
    client_id, secret = found.get("client_id"), found.get("client_secret")
    if not isinstance(client_id, str) or not client_id.isprintable() or not client_id:
        raise OAuthError(STEP, host, "its answer has no client_id")
    secret = secret if isinstance(secret, str) else ""
    method = found.get("token_endpoint_auth_method")
    if not isinstance(method, str):
        method = asked if secret or asked == NONE else BASIC
    if method not in (NONE, BASIC, POST) or (method != NONE and not secret):
        raise OAuthError(STEP, host, "it assigned a way to authenticate that we cannot use")
    until = found.get("client_secret_expires_at")
    return OAuthClient(client_id, method, secret, _read_time(until))


def _read_time(value: Any) -> float:
    """Read when a secret ends; 0, for never, also where a number is none or has no end."""
    is_time = isinstance(value, int | float) and 0 <= value < _LATEST
    return float(value) if is_time else 0.0


def authenticate(
    client: OAuthClient, form: dict[str, str], assertion: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and the form of a token request, with the proof of who we are.

    The form names us whatever the method: many issuers look there first. Spaces are %20 in Basic,
    which all understand, also those that do not read "+" as one.
    """
    form = {**form, "client_id": client.client_id} if client.client_id else form
    if client.method == BASIC:
        pair = f"{quote(client.client_id, safe='')}:{quote(client.secret, safe='')}"
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, form
    if client.method == POST:
        form["client_secret"] = client.secret
    elif client.method == JWT:
        form |= {"client_assertion_type": _ASSERTION, "client_assertion": assertion}
    return {}, form
