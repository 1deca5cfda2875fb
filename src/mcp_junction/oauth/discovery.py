"""Discovery: what a server asks for, where its metadata and its issuer's is, whether to believe it.

A challenge is the ``WWW-Authenticate`` of a 401 or 403. The order of addresses and the checks are
those of RFC 9728 and RFC 8414 as MCP asks for them. A document that fails its check ends the
sign-in before anybody is sent to a browser. What follows a challenge is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from mcp_junction.config.urls import UrlTarget, parse_url
from mcp_junction.errors import OAuthError
from mcp_junction.oauth.tokens import decode_object

_GAP: Final = re.compile(r"[\s,]*")
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME: Final = re.compile(rf"({_TOKEN})(?=\s|,|$)")
_PARAM: Final = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_TOKEN68: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")
_ESCAPED: Final = re.compile(r"\\(.)")
_LONGEST: Final = 16_384
INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class BearerChallenge(msgspec.Struct, frozen=True):
    """What a server that wants a bearer token says of it; empty where it says nothing."""

    resource_metadata: str = ""
    scope: str = ""
    error: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs, as far as the server names them."""
        return tuple(self.scope.split())

    @property
    def wants_scope(self) -> bool:
        """Whether the token was good, and only its scopes are not enough."""
        return self.error == INSUFFICIENT_SCOPE


def read_challenge(header: bytes | None) -> BearerChallenge | None:
    """Read the bearer challenge of a header, which may join several; None when there is none."""
    if not header or len(header) > _LONGEST:
        return None
    found = [
        params for scheme, params in _split(header.decode("latin-1")) if scheme.lower() == "bearer"
    ]
    if not found:
        return None
    best = next((params for params in found if "resource_metadata" in params), found[0])
    fields = ("resource_metadata", "scope", "error")
    return BearerChallenge(*(best.get(name, "") for name in fields))


def _split(text: str) -> list[tuple[str, dict[str, str]]]:
    """Split a list of challenges into schemes and their parameters; the rest is left out."""
    found: list[tuple[str, dict[str, str]]] = []
    at = _skip(text, 0)
    while at < len(text):
        if found and (param := _PARAM.match(text, at)) is not None:
            quoted, plain = param[2], param[3]
            value = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            found[-1][1].setdefault(param[1].lower(), value)
        elif (param := _SCHEME.match(text, at)) is not None:
            found.append((param[1], {}))
        elif (param := _TOKEN68.match(text, at)) is None:
            break  # what cannot be read ends the list
        at = _skip(text, param.end())
    return found


def _skip(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap is not None else at


# -- metadata

RESOURCE: Final = "protected-resource metadata"
ISSUER: Final = "authorization-server metadata"
_WELL_KNOWN: Final = "/.well-known/"
_PROTECTED: Final = "oauth-protected-resource"
_AUTHORIZATION: Final = "oauth-authorization-server"
_OPENID: Final = "openid-configuration"
_MOST_SCOPES: Final = 200


class ResourceMetadata(msgspec.Struct, frozen=True):
    """What a server says of itself as a protected resource."""

    resource: str
    """Its identifier, byte for byte as it wrote it."""
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] = ()


class IssuerMetadata(msgspec.Struct, frozen=True):
    """What an authorization server says of itself."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    challenge_methods: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    takes_metadata_urls: bool = False
    """Whether a client may be the URL of its metadata document."""
    names_itself: bool = False
    """Whether its answers to a browser carry ``iss``."""


def resource_metadata_urls(server_url: str, named: str = "") -> list[str]:
    """List where to look for a server's metadata, in order; ``named`` is the challenge's."""
    if named:
        return [named]
    parts = urlsplit(server_url)
    path = parts.path.rstrip("/")
    paths = [f"{_WELL_KNOWN}{_PROTECTED}{path}", f"{_WELL_KNOWN}{_PROTECTED}"]
    return [_at(server_url, one) for one in dict.fromkeys(paths)]


def issuer_metadata_urls(issuer: str) -> list[str]:
    """List where to look for an issuer's metadata, in order; never the root of one with a path."""
    path = urlsplit(issuer).path.rstrip("/")
    if not path:
        paths = [f"{_WELL_KNOWN}{_AUTHORIZATION}", f"{_WELL_KNOWN}{_OPENID}"]
    else:
        paths = [
            f"{_WELL_KNOWN}{_AUTHORIZATION}{path}",
            f"{_WELL_KNOWN}{_OPENID}{path}",
            f"{path}{_WELL_KNOWN}{_OPENID}",
        ]
    return [_at(issuer, one) for one in paths]


def origin_of(url: str) -> str:
    """Return the scheme and host of a URL: the issuer of servers older than resource metadata."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "", "", ""))


def read_resource_metadata(body: bytes, server_url: str, host: str) -> ResourceMetadata:
    """Read a server's metadata. Raises OAuthError, also when it is that of another resource."""
    found = _read_object(body, RESOURCE, host)
    resource = _text(found, "resource")
    if not _covers(resource, server_url):
        words = "it describes another resource than the server's url; nobody is sent to sign in"
        raise OAuthError(RESOURCE, host, words)
    return ResourceMetadata(
        resource, _texts(found, "authorization_servers"), _texts(found, "scopes_supported")
    )


def read_issuer_metadata(body: bytes, issuer: str, host: str) -> IssuerMetadata:
    """Read an issuer's metadata. Raises OAuthError, also when it names another issuer."""
    found = _read_object(body, ISSUER, host)
    if _text(found, "issuer") != issuer:
        raise OAuthError(ISSUER, host, "it names another issuer than the one that was asked")
    made = IssuerMetadata(
        issuer,
        _url(found, "token_endpoint", host),
        _url(found, "authorization_endpoint", host),
        _url(found, "registration_endpoint", host),
        _url(found, "revocation_endpoint", host),
        _texts(found, "code_challenge_methods_supported"),
        _texts(found, "token_endpoint_auth_methods_supported"),
        _texts(found, "scopes_supported"),
        found.get("client_id_metadata_document_supported") is True,
        found.get("authorization_response_iss_parameter_supported") is True,
    )
    if not made.token_endpoint:
        raise OAuthError(ISSUER, host, "it names no token_endpoint")
    return made


def check_code_flow(found: IssuerMetadata, host: str) -> None:
    """Raise OAuthError unless an issuer can sign a person in, protected by PKCE with S256."""
    if not found.authorization_endpoint:
        raise OAuthError(ISSUER, host, "it names no authorization_endpoint")
    if "S256" not in found.challenge_methods:
        words = (
            "it does not say that it supports PKCE with S256 (code_challenge_methods_supported),"
            " without which a sign-in is not safe"
        )
        raise OAuthError(ISSUER, host, words)


def choose_issuer(found: ResourceMetadata | None, wanted: str, server_url: str) -> str:
    """Choose the issuer: the operator's, the first that the server names, or its own origin."""
    if wanted:
        return wanted
    if found is None:
        return origin_of(server_url)
    if not found.issuers:
        words = "it names no authorization server; give `issuer` in the server's `auth`"
        raise OAuthError(RESOURCE, parse_url(server_url).host, words)
    return found.issuers[0]


def _covers(resource: str, server_url: str) -> bool:
    """Whether a resource is the server's url, or a parent of it by whole segments of the path."""
    try:
        ours, theirs = parse_url(server_url), parse_url(resource)
    except ValueError:
        return False
    if ours.origin != theirs.origin or urlsplit(resource).fragment:
        return False
    if "?" in theirs.path:
        return theirs.path == ours.path
    segments, parent = _segments(ours), _segments(theirs)
    return segments[: len(parent)] == parent


def _segments(place: UrlTarget) -> list[str]:
    path = place.path.partition("?")[0].strip("/")
    return path.split("/") if path else []


def _at(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _read_object(body: bytes, what: str, host: str) -> dict[str, Any]:
    found = decode_object(body)
    if found is None:
        raise OAuthError(what, host, "its answer is not a JSON object")
    return found


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""


def _texts(found: dict[str, Any], name: str) -> tuple[str, ...]:
    value = found.get(name)
    values: Sequence[Any] = value[:_MOST_SCOPES] if isinstance(value, list) else ()
    return tuple(one for one in values if isinstance(one, str) and one)


def _url(found: dict[str, Any], name: str, host: str) -> str:
    """Read the address of an endpoint; it must be one that a request can be made to."""
    url = _text(found, name)
    if url:
        try:
            parse_url(url)
        except ValueError as error:
            raise OAuthError(ISSUER, host, f"its {name} makes no sense: {error}") from None
    return url
