"""Challenges: how a client without a good key or token learns what it needs, and where to get it.

The ``WWW-Authenticate`` header (RFC 6750) and the metadata of our endpoints as protected resources
(RFC 9728). Both name an endpoint whether there is one or not: that is for nobody to learn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import quote

import msgspec

from mcp_junction.errors import ScopesMissing, TokenRefused
from mcp_junction.identity.keys import KeyRing
from mcp_junction.identity.tokens import AccessTokens
from mcp_junction.policy.principal import RIGHTS, Right, Role

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
REALM: Final = 'Bearer realm="mcp-junction"'
_MCP: Final = "/mcp"


class Door:
    """What the listener asks about requests that no key lets in."""

    def __init__(self, keys: KeyRing, name: str, refresh: Callable[[], Awaitable[object]]) -> None:
        """``refresh`` reads keys and grants again."""
        self._keys = keys
        self._name = name
        self._refresh = refresh

    async def verify(self, headers: dict[bytes, bytes]) -> TokenRefused | None:
        """Verify the access token of a request, or a key that was just made.

        Return why it is not good, if it is a token that is not. The KeyRing knows the principal of
        what is good from then on. Raises IssuerUnavailable.
        """
        try:
            given = headers.get(b"authorization")
            if given and await self._keys.find_new(given, self._refresh) is None:
                await self._keys.verify(given)
        except TokenRefused as refused:
            return refused
        return None

    def challenge(self, path: str, refused: TokenRefused | None) -> str:
        """What a request to a path is told that has no good key or token."""
        return make_challenge(self._keys.tokens, path, refused)

    def describe_resource(self, path: str) -> bytes | None:
        """The metadata of an endpoint as a protected resource, if it is at this path."""
        tokens, resource = self._keys.tokens, path.removeprefix(WELL_KNOWN).rstrip("/")
        if tokens is None or not path.startswith(WELL_KNOWN):
            return None
        if resource and resource != _MCP and not resource.startswith(f"{_MCP}/"):
            return None
        found = {
            "resource": f"{tokens.public_url}{quote(resource)}",
            "authorization_servers": [tokens.door.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": self._name,
        }
        if tokens.door.scopes:
            found["scopes_supported"] = tokens.door.scopes
        return msgspec.json.encode(found)


def make_challenge(
    tokens: AccessTokens | None, path: str, refused: TokenRefused | None = None
) -> str:
    """Make the challenge for a request to a path; ``refused`` says why its token is not good."""
    if tokens is None:
        return REALM
    parts = [REALM, f'resource_metadata="{_metadata_url(tokens, path)}"']
    if isinstance(refused, ScopesMissing):
        parts += ['error="insufficient_scope"', f'scope="{" ".join(refused.scopes)}"']
        return ", ".join([*parts, f'error_description="{_quotable(str(refused))}"'])
    if tokens.door.scopes:
        parts.append(f'scope="{" ".join(tokens.door.scopes)}"')
    if refused is not None:
        parts += ['error="invalid_token"', f'error_description="{_quotable(str(refused))}"']
    return ", ".join(parts)


def make_scope_challenge(tokens: AccessTokens, path: str, needed: Collection[Right]) -> str:
    """Make the challenge for a token whose role lacks a right: which scopes would have it."""
    roles = {one: RIGHTS[Role(role)] for one, role in tokens.door.roles.items()}
    scopes = [one for one, has in roles.items() if "=" not in one and has & set(needed)]
    parts = [REALM, 'error="insufficient_scope"']
    parts += [f'scope="{" ".join(scopes)}"'] if scopes else []
    return ", ".join([*parts, f'resource_metadata="{_metadata_url(tokens, path)}"'])


def _metadata_url(tokens: AccessTokens, path: str) -> str:
    resource = path.rstrip("/") if path.startswith(f"{_MCP}/") else _MCP
    return f"{tokens.public_url}{WELL_KNOWN}{quote(resource)}"


def _quotable(text: str) -> str:
    return "".join(char for char in text if " " <= char <= "~" and char not in '"\\')
