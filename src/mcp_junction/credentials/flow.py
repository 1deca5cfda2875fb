"""OAuthFlow: the requests of OAuth for one server: discovery, registration, tokens, revocation.

It holds nothing between them: what comes of them is kept by whoever asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.config.auth import CLIENT_CREDENTIALS, WIF, ServerAuth, effective_auth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import UrlTarget, parse_url
from mcp_junction.credentials.http import OAuthHttp, find_permissions
from mcp_junction.errors import OAuthError
from mcp_junction.oauth.discovery import (
    ISSUER,
    RESOURCE,
    BearerChallenge,
    IssuerMetadata,
    ResourceMetadata,
    choose_issuer,
    issuer_metadata_urls,
    read_issuer_metadata,
    read_resource_metadata,
    resource_metadata_urls,
)
from mcp_junction.oauth.registration import (
    JWT,
    OAuthClient,
    authenticate,
    choose_auth_method,
    client_metadata,
    read_registered,
    registered_client,
)
from mcp_junction.oauth.registration import (
    STEP as REGISTRATION,
)
from mcp_junction.oauth.tokens import STEP as TOKEN
from mcp_junction.oauth.tokens import TokenAnswer, read_token_answer
from mcp_junction.upstream.http.connection import Connection
from mcp_junction.upstream.http.dialer import Dialer, Sockets, TlsFiles
from mcp_junction.upstream.http.fetch import FetchedResponse

REVOCATION: Final = "revocation"
TOKEN_EXCHANGE_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_MAX_ASSERTION: Final = 65_536
_ASSERTION_LIFE: Final = 60.0
_ALGORITHMS: Final = {"EC": "ES256", "RSA": "RS256", "OKP": "Ed25519"}


class Discovery(msgspec.Struct, frozen=True):
    """Where and for what a server's users sign in."""

    issuer: IssuerMetadata
    resource: str = ""
    """The server's identifier as it wrote it; empty for one that is older than such metadata."""
    scopes: tuple[str, ...] = ()


class OAuthFlow:
    """Makes the requests of OAuth for one server."""

    def __init__(self, definition: ServerDefinition) -> None:
        self._definition = definition
        self.auth = effective_auth(definition.auth, {}) or ServerAuth()

    async def discover(self, challenge: BearerChallenge | None) -> Discovery:
        """Find the issuer of a server, by what its challenge or its address says."""
        named = challenge.resource_metadata if challenge is not None else ""
        # That the operator named an issuer says nothing of where a server says its metadata is.
        found = await self._find_resource(await self._http(is_named=False), named)
        issuer = choose_issuer(found, self.auth.issuer, self._definition.url)
        metadata = await self._find_issuer(await self._http(), issuer)
        if found is None:
            return Discovery(metadata)
        return Discovery(metadata, found.resource, found.scopes)

    def check_issuer(self, found: Discovery, known: Collection[str]) -> None:
        """Raise OAuthError when a server names another issuer than before.

        The operator's client, and its secret, belong to an issuer: it is not a server's to say
        where they are sent.
        """
        now = found.issuer.issuer
        if known and now not in known and not self.auth.issuer:
            words = (
                f"it names another issuer than before, {now}, and the client in its `auth` was"
                f" registered at {min(known)}; if that is right, give `issuer` in its `auth`"
            )
            raise OAuthError(RESOURCE, _host(self._definition.url), words)

    async def _http(self, *, is_named: bool = True) -> OAuthHttp:
        is_named = is_named and bool(self.auth.issuer)
        permissions = await find_permissions(self._definition, is_named=is_named)
        return OAuthHttp(Dialer(permissions, connect=self._connect))

    async def _connect(
        self, make: Callable[[], Connection], address: str, place: UrlTarget
    ) -> Connection:
        """Connect with the TLS files of the server, where the server itself is asked."""
        own, is_own = self._definition, place.origin == parse_url(self._definition.url).origin
        files = TlsFiles(own.tls_ca, own.tls_cert, own.tls_key) if is_own else None
        return await Sockets(files).connect(make, address, place)

    async def _find_resource(self, http: OAuthHttp, named: str) -> ResourceMetadata | None:
        url = self._definition.url
        for place in (*([named] if named else ()), *resource_metadata_urls(url)):
            answer = await http.get(RESOURCE, place)
            if answer.status == 200:
                return read_resource_metadata(answer.body, url, _host(place))
        return None

    async def _find_issuer(self, http: OAuthHttp, issuer: str) -> IssuerMetadata:
        try:
            parse_url(issuer)
        except ValueError as error:
            host = _host(self._definition.url)
            raise OAuthError(
                RESOURCE, host, f"it names an issuer that makes no sense: {error}"
            ) from None
        for place in issuer_metadata_urls(issuer):
            answer = await http.get(ISSUER, place)
            if answer.status == 200:
                return read_issuer_metadata(answer.body, issuer, _host(place))
        words = "it has no metadata; check `issuer` in the server's `auth`, if that is given"
        raise OAuthError(ISSUER, _host(issuer), words)

    async def register(self, found: Discovery, name: str, redirect_uri: str) -> OAuthClient:
        """Register us at an issuer, for one redirect."""
        http, issuer = await self._http(), found.issuer
        method = choose_auth_method(issuer)
        wanted: dict[str, Any] = client_metadata(name, [redirect_uri], method)
        endpoint = issuer.registration_endpoint
        answer = await http.post_json(REGISTRATION, endpoint, wanted)
        return read_registered(answer.status, answer.body, method, _host(endpoint))

    async def request_token(
        self,
        endpoint: str,
        client: OAuthClient,
        form: dict[str, str],
        *,
        issuer: str = "",
        refresh: str = "",
        scopes: tuple[str, ...] = (),
    ) -> TokenAnswer:
        """Ask a token endpoint. Raises OAuthError."""
        answer = await self._post_as(client, issuer, TOKEN, endpoint, form)
        host = _host(endpoint)
        return read_token_answer(
            answer.status, answer.content_type, answer.body, host, time.time(),
            refresh=refresh, scopes=scopes,
        )  # fmt: skip

    async def request_own_token(
        self, challenge: BearerChallenge | None, scopes: tuple[str, ...], known_issuer: str = ""
    ) -> tuple[TokenAnswer, Discovery]:
        """Get a token of our own, without a person: by a secret, a key or a workload's token.

        What proves us goes to no other issuer than the one that is known already.
        """
        found, auth = await self.discover(challenge), self.auth
        self.check_issuer(found, {known_issuer} - {""})
        form = {"grant_type": CLIENT_CREDENTIALS}
        if auth.type == WIF:
            file, host = auth.assertion_file, _host(found.issuer.issuer)
            assertion = await asyncio.to_thread(_read_assertion, file, host)
            form = {"grant_type": JWT_BEARER, "assertion": assertion}
        if found.resource:
            form["resource"] = found.resource
        return await self._request_as_operator(found.issuer, form, scopes), found

    async def exchange_token(
        self, subject_token: str, scopes: tuple[str, ...]
    ) -> tuple[TokenAnswer, str]:
        """Exchange a caller's token for one for the server; return the issuer, too."""
        found, auth = await self.discover(None), self.auth
        form = {
            "grant_type": TOKEN_EXCHANGE_GRANT,
            "subject_token": subject_token,
            "subject_token_type": _ACCESS_TOKEN,
            "requested_token_type": _ACCESS_TOKEN,
        }
        if auth.audience:
            form["audience"] = auth.audience
        else:
            form["resource"] = found.resource or self._definition.url
        return await self._request_as_operator(found.issuer, form, scopes), found.issuer.issuer

    async def _request_as_operator(
        self, issuer: IssuerMetadata, form: dict[str, str], scopes: tuple[str, ...]
    ) -> TokenAnswer:
        """Ask for a token as the client that the operator registered. Raises OAuthError."""
        auth = self.auth
        method = JWT if auth.private_key_file and not auth.method else auth.method
        client = registered_client(auth.client_id, auth.client_secret, method, issuer)
        if scopes:
            form["scope"] = " ".join(scopes)
        return await self.request_token(issuer.token_endpoint, client, form, issuer=issuer.issuer)

    async def revoke(self, endpoint: str, client: OAuthClient, issuer: str, token: str) -> None:
        """Tell an issuer that a token is not needed any more. Raises OAuthError."""
        answer = await self._post_as(client, issuer, REVOCATION, endpoint, {"token": token})
        if answer.status != 200:
            words = f"it answered HTTP {answer.status}"
            raise OAuthError(REVOCATION, _host(endpoint), words, "", answer.status)

    async def _post_as(
        self, client: OAuthClient, issuer: str, step: str, endpoint: str, form: dict[str, str]
    ) -> FetchedResponse:
        """POST a form with the proof of who we are. Raises OAuthError."""
        assertion = ""
        if client.method == JWT:
            file = self.auth.private_key_file
            assertion = await asyncio.to_thread(_sign_assertion, client.client_id, issuer, file)
        headers, sent = authenticate(client, form, assertion)
        return await (await self._http()).post_form(step, endpoint, sent, headers)


def _read_assertion(file: str, host: str) -> str:
    """Read the token that the platform keeps for this workload. Raises OAuthError."""
    try:
        text = Path(file).expanduser().read_bytes()[: _MAX_ASSERTION + 1].decode("ascii").strip()
    except OSError as error:
        raise OAuthError(TOKEN, host, f"assertion_file: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    is_token = text.count(".") == 2 and not any(char.isspace() for char in text)
    if not is_token or len(text) > _MAX_ASSERTION:  # never send what is something else
        raise OAuthError(TOKEN, host, "assertion_file holds no token (a JWT)")
    return text


def _sign_assertion(client_id: str, issuer: str, file: str) -> str:
    """Sign who we are with the operator's private key. Raises OAuthError."""
    # Imported late, and in a thread: it takes a tenth of a second.
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    host, now = _host(issuer), int(time.time())
    claims = {
        "iss": client_id, "sub": client_id, "aud": issuer, "jti": uuid4().hex,
        "iat": now, "exp": now + int(_ASSERTION_LIFE),
    }  # fmt: skip
    try:
        text = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise OAuthError(TOKEN, host, f"private_key_file: {error.strerror}") from None
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            key = kind.import_key(text)
            algorithm = _ALGORITHMS[key.key_type]
            return jwt.encode({"alg": algorithm, "typ": "JWT"}, claims, key, [algorithm])
        except (JoseError, ValueError, TypeError, AttributeError):
            continue
    raise OAuthError(TOKEN, host, "private_key_file holds no key that can be used (PEM: EC or RSA)")


def _host(url: str) -> str:
    try:
        return parse_url(url).host
    except ValueError:
        return "an unreadable address"
