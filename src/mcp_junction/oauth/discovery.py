"""Discovery: where the metadata of a server and of its issuer is, and whether it may be believed.

The order of addresses and the checks are those of RFC 9728 and RFC 8414 as MCP asks for them. A
document that fails its check ends the sign-in before anybody is sent to a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from mcp_junction.config.urls import UrlTarget, parse_url
from mcp_junction.errors import OAuthError

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
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
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
