"""ServerAuth: how we authenticate to a remote server, as its entry or registration says.

Without ``auth``, a server that answers with a bearer challenge is signed in to by OAuth, and a
server that was given an Authorization header is sent that header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

OAUTH = "oauth"
CLIENT_CREDENTIALS = "client_credentials"
WIF = "wif"
"""Workload identity: a token that the platform writes into a file is shown to the issuer."""
TOKEN_EXCHANGE = "token_exchange"
"""The caller's own access token is exchanged at the issuer for one for the server (RFC 8693)."""
BEARER = "bearer"
KEY = "key"
NO_AUTH = "none"
AUTH_TYPES = (OAUTH, CLIENT_CREDENTIALS, WIF, TOKEN_EXCHANGE, BEARER, KEY, NO_AUTH)
_BY_CLIENT = (CLIENT_CREDENTIALS, TOKEN_EXCHANGE)
SERVER, AGENT = "server", "agent"
PERS = (SERVER, AGENT)
METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
_TEXTS = (
    "client_id", "client_secret", "issuer", "private_key_file", "method", "header", "token",
    "client_metadata_url", "assertion_file", "audience",
)  # fmt: skip
AUTH_FIELDS = ("type", "per", "scopes", *_TEXTS)


class ServerAuth(NamedTuple):
    """How to authenticate to one server."""

    type: str = OAUTH
    per: str = SERVER
    """Whether one sign-in serves all who call, or each agent has its own."""
    client_id: str = ""
    client_secret: str = ""
    issuer: str = ""
    scopes: tuple[str, ...] = ()
    private_key_file: str = ""
    method: str = ""
    """How the client proves itself at the token endpoint; empty to choose what fits."""
    header: str = ""
    """The header that carries a key."""
    token: str = ""
    client_metadata_url: str = ""
    assertion_file: str = ""
    """Where the platform keeps the token of this workload; it is read for each request."""
    audience: str = ""
    """What a token is exchanged for, where the issuer does not go by the server's address."""

    def __repr__(self) -> str:
        """Without what is a secret."""
        return f"ServerAuth(type={self.type!r}, per={self.per!r})"

    @property
    def is_per_agent(self) -> bool:
        return self.per == AGENT or self.type == TOKEN_EXCHANGE


def read_auth(
    value: Any, expand: Callable[[str, str], str], wrong: Callable[[str, str], None]
) -> ServerAuth | None:
    """Read ``auth``. ``expand`` replaces variables, ``wrong`` takes what is wrong and where.

    Other programs write "oauth" or a bearer token in its place, or the names in capitals.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return ServerAuth() if value == OAUTH else ServerAuth(BEARER, token=expand(value, ""))
    if not isinstance(value, Mapping):
        wrong("", "must be an object with a type")
        return None
    given = {str(name).lower(): one for name, one in value.items()}
    for name in given.keys() - set(AUTH_FIELDS):
        wrong(name, "is not a field that is known here")
    texts = {name: given[name] for name in _TEXTS if given.get(name) is not None}
    for name in [name for name, text in texts.items() if not isinstance(text, str)]:
        wrong(name, "must be a string")
        del texts[name]
    made = ServerAuth(
        given.get("type", OAUTH),
        given.get("per", SERVER),
        scopes=_read_scopes(given.get("scopes") or (), wrong),
        **{name: expand(text, name) for name, text in texts.items()},
    )
    for name, fault in _faults(made):
        wrong(name, fault)
    return made


def read_type(value: Any) -> Any:
    """Read the type of an ``auth`` alone."""
    if not isinstance(value, Mapping):
        return None
    return next((one for name, one in value.items() if str(name).lower() == "type"), OAUTH)


def _read_scopes(value: Any, wrong: Callable[[str, str], None]) -> tuple[str, ...]:
    scopes = value.split() if isinstance(value, str) else value
    if isinstance(scopes, list | tuple) and all(isinstance(one, str) for one in scopes):
        return tuple(scopes)
    wrong("scopes", "must be an array of strings")
    return ()


def _faults(made: ServerAuth) -> list[tuple[str, str]]:
    found = []
    if made.type not in AUTH_TYPES:
        found.append(("type", f"must be one of {', '.join(AUTH_TYPES)}"))
    if made.per not in PERS:
        found.append(("per", f"must be one of {', '.join(PERS)}"))
    if made.method and made.method not in METHODS:
        found.append(("method", f"must be one of {', '.join(METHODS)}"))
    if made.type == BEARER and not made.token:
        found.append(("token", "is missing: give the bearer token, best as a ${VARIABLE}"))
    found += _client_faults(made) if made.type in _BY_CLIENT else ()
    if made.type == WIF and not made.assertion_file:
        found.append(("assertion_file", "is missing: name the file with the workload's token"))
    if made.type in (BEARER, CLIENT_CREDENTIALS, WIF) and made.per == AGENT:
        found.append(("per", f"must be server: type {made.type} has nobody who signs in"))
    return found


def _client_faults(made: ServerAuth) -> list[tuple[str, str]]:
    found = []
    if made.type == TOKEN_EXCHANGE and not made.issuer:
        found.append(("issuer", "is missing: it alone is sent the access tokens of callers"))
    if not made.client_id:
        found.append(("client_id", "is missing: give the client that was registered"))
    if not (made.client_secret or made.private_key_file):
        found.append(("client_secret", "is missing: give it, or a private_key_file"))
    return found


def effective_auth(auth: ServerAuth | None, headers: Mapping[str, str]) -> ServerAuth | None:
    """Return how a remote server is authenticated to; None where only its headers count."""
    if auth is not None:
        return None if auth.type == NO_AUTH else auth
    return None if any(name.lower() == "authorization" for name in headers) else ServerAuth()
