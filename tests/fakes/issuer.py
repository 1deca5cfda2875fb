"""FakeIssuer: an authorization server for tests, and a server of both eras that takes its tokens.

Both answer at one loopback address, in the test's own process. What they do can be changed at any
time: lifetimes, rotation, discovery, faults of each endpoint. ``ledger`` has every grant and every
use of a token, in order. Signing in needs no person: a GET of the authorization address does.
With ``keys`` its access tokens are JWTs, as those at our own door are.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_plus, urlencode

from tests.fakes.http_ledger import LedgerRequest, read_request
from tests.fakes.protected_server import IssuedToken, Json, ProtectedServer, Response

if TYPE_CHECKING:
    from tests.fakes.signed_tokens import Key

EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"


@dataclass
class Fault:
    """How an endpoint fails: a status, a delay, a reset, another body."""

    status: int = 200
    _: KW_ONLY
    delay: float = 0.0
    reset: bool = False
    body: str | Json | None = None
    kind: str = "application/json"
    times: int = 10**9


class FakeIssuer(ProtectedServer):
    """An issuer, and the MCP server at ``url`` that believes it."""

    def __init__(
        self, *keys: Key, era: str = "2025-11-25", path: str = "/mcp", issuer_path: str = ""
    ) -> None:
        super().__init__(era)
        self.path = path
        self.keys = list(keys)
        """Those that it signs access tokens with, the first of them; none for random ones."""
        self.is_down = False
        self.gives_scopes: str | None = None
        """What it grants instead of the scopes that it is asked for."""
        self.life: float | None = 3600.0
        """Seconds that an access token is good; None to leave ``expires_in`` out."""
        self.gives_refresh = True
        self.rotates = True
        self.detects_reuse = True
        self.person = "alice"
        """Whose account the next one to sign in has."""
        self.metadata: Json = {}
        """Fields of the issuer's metadata that differ; None leaves one out."""
        self.resource_metadata: Json = {}
        self.faults: dict[str, Fault] = {}
        """By the path of an endpoint."""
        self.issuer_path = issuer_path
        self.registered: Json = {}
        """Fields of the answer to a registration that differ."""
        self.token_fields: Json = {}
        """Fields of the answer to a token request that differ."""
        self.answer_fields: dict[str, str | None] = {}
        """Fields of the answer to a browser that differ: ``iss``, ``state``, ``error`` …"""
        self.workloads: dict[str, str] = {}
        """The accounts of workloads by the tokens that these show."""
        self.clients: dict[str, Json] = {}
        self.client_keys: dict[str, Any] = {}
        """The public keys of clients, by their id."""
        self.refresh: dict[str, IssuedToken] = {}
        self._codes: dict[str, Json] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FakeIssuer:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=1 << 24, backlog=1024, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def url(self) -> str:
        """The address of the MCP server."""
        return self.origin + self.path

    @property
    def issuer(self) -> str:
        return self.origin + self.issuer_path

    def count(self, event: str) -> int:
        """How often something happened."""
        return sum(kind == event for kind, _ in self.ledger)

    def revoke_access(self) -> None:
        """End all access tokens, as an expiry does."""
        for token in self.access.values():
            token.ends = 0.0

    def token(self, audience: Any, key: Key | None = None, alg: str = "", **claims: Any) -> str:
        """Make a JWT access token; a claim of None is left out."""
        from tests.fakes.signed_tokens import sign  # late: it takes a while

        now = int(time.time())
        found = {"iss": self.issuer, "aud": audience, "sub": self.person, "iat": now}
        return sign(key or self.keys[0], alg, **{**found, "exp": now + 600, **claims})

    # -- HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._answer(await read_request(reader), writer):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: LedgerRequest, writer: asyncio.StreamWriter) -> bool:
        path, _, query = request.path.partition("?")
        fault = self.faults.get(path)
        if fault is not None and fault.times > 0:
            fault.times -= 1
            await asyncio.sleep(fault.delay)
            if fault.reset:
                writer.transport.abort()
                return False
            if fault.status != 200 or fault.body is not None:
                self.ledger.append(("fault", path))
                writer.write(_encode(fault.status, fault.body, {"content-type": fault.kind}))
                return True
        form = dict(parse_qsl(request.body.decode("latin-1"))) if request.method == "POST" else {}
        status, body, headers = self._route(request, path, dict(parse_qsl(query)), form)
        writer.write(_encode(status, body, headers))
        return True

    def _route(
        self, request: LedgerRequest, path: str, query: dict[str, str], form: dict[str, str]
    ) -> Response:
        if self.is_down:
            return 503, None, {}
        if path == self.path:
            return self._serve_mcp(request)
        if path == "/register":
            return self._register(json.loads(request.body))
        if path == "/authorize":
            return self._authorize(query)
        if path == "/token":
            return self._give_token(request, form)
        if path == "/revoke":
            self.ledger.append(("revoke", form.get("token")))
            for tokens in (self.access, self.refresh):
                tokens.pop(form.get("token", ""), None)
            return 200, {}, {}
        document = self._document(path)
        return (404, {"error": "not_found"}, {}) if document is None else (200, document, {})

    def _document(self, path: str) -> Json | None:
        """What is published at a path."""
        if path in (f"/.well-known/oauth-protected-resource{self.path}", "/meta"):
            found = {"resource": self.url, "authorization_servers": [self.issuer]}
            return _merged(found, self.resource_metadata)
        if path in [f"/.well-known/{name}{self.issuer_path}" for name in _METADATA]:
            return _merged(self._own_metadata(), self.metadata)
        if path == "/jwks":
            return {"keys": [key.as_dict(private=False) for key in self.keys]}
        return None

    def _own_metadata(self) -> Json:
        base = self.origin
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": f"{base}/token",
            "registration_endpoint": f"{base}/register",
            "revocation_endpoint": f"{base}/revoke",
            "jwks_uri": f"{base}/jwks",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }

    # -- the issuer

    def _register(self, wanted: Json) -> Response:
        client_id = f"client-{len(self.clients) + 1}"
        self.clients[client_id] = wanted
        self.ledger.append(("register", wanted))
        wanted.setdefault("token_endpoint_auth_method", "client_secret_basic")
        made = {"client_id": client_id, **wanted}
        if wanted["token_endpoint_auth_method"] != "none":
            made["client_secret"] = wanted["secret"] = secrets.token_urlsafe(16)
        return 201, _merged(made, self.registered), {}

    def _authorize(self, query: dict[str, str]) -> Response:
        self.ledger.append(("authorize", query))
        code = secrets.token_urlsafe(16)
        self._codes[code] = {**query, "account": self.person}
        answer: dict[str, str | None] = {"code": code, "state": query.get("state")}
        fields = {k: v for k, v in {**answer, **self.answer_fields}.items() if v is not None}
        return 302, None, {"location": f"{query['redirect_uri']}?{urlencode(fields)}"}

    def _give_token(self, request: LedgerRequest, form: dict[str, str]) -> Response:
        client, fault = self._client_of(request, form)
        if fault:
            self.ledger.append(("token refused", fault))
            return 401, {"error": fault}, {}
        kind = form.get("grant_type")
        if kind == "authorization_code":
            found = self._codes.pop(form.get("code", ""), None)
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if (
                found is None
                or found["code_challenge"] != proof
                or found["redirect_uri"] != form.get("redirect_uri")
                or found["client_id"] != client
            ):
                return 400, {"error": "invalid_grant"}, {}
            token = self._new(found["account"], client, found.get("scope", ""), form)
            self.ledger.append(("code", form))
            return self._issue(token, None)
        if kind == "refresh_token":
            return self._refresh(client, form)
        if kind == "client_credentials":
            self.ledger.append(("client_credentials", {"client": client, **form}))
            token = self._new(client, client, form.get("scope", ""), form)
            return self._issue(token, "")
        if kind == "urn:ietf:params:oauth:grant-type:jwt-bearer":
            self.ledger.append(("jwt-bearer", form))
            if form.get("assertion") not in self.workloads:
                return 400, {"error": "invalid_grant"}, {}
            account = self.workloads[form["assertion"]]
            return self._issue(self._new(account, client, form.get("scope", ""), form), "")
        if kind == EXCHANGE:
            return self._exchange(client, form)
        return 400, {"error": "unsupported_grant_type"}, {}

    def _exchange(self, client: str, form: dict[str, str]) -> Response:
        """Give a token of our own for one that we gave to somebody (RFC 8693)."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        self.ledger.append(("exchange", form))
        try:
            claims = jwt.decode(form["subject_token"], self.keys[0]).claims
        except (JoseError, ValueError):
            return 400, {"error": "invalid_grant"}, {}
        token = self._new(claims["sub"], client, form.get("scope", ""), form)
        status, answer, headers = self._issue(token, "")
        assert isinstance(answer, dict)
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return status, {**answer, "issued_token_type": kind}, headers

    def _client_of(self, request: LedgerRequest, form: dict[str, str]) -> tuple[str, str]:
        header = request.headers.get("authorization", "")
        if header.lower().startswith("basic "):
            pair = base64.b64decode(header[6:]).decode()
            client, _, secret = (unquote_plus(part) for part in pair.partition(":"))
        else:
            client, secret = form.get("client_id", ""), form.get("client_secret", "")
        known = self.clients.get(client)
        if known is None:
            return client, "invalid_client"
        if "client_assertion" in form:
            from joserfc import jwt

            claims = jwt.decode(form["client_assertion"], self.client_keys[client]).claims
            right = claims["aud"] == self.issuer and claims["iss"] == claims["sub"] == client
            return client, "" if right and claims["exp"] > time.time() else "invalid_client"
        return client, "" if secret == known.get("secret", "") else "invalid_client"

    def _new(self, account: str, client: str, scopes: str, form: dict[str, str]) -> IssuedToken:
        ends = time.time() + (3600.0 if self.life is None else self.life)
        scopes = scopes if self.gives_scopes is None else self.gives_scopes
        return IssuedToken(account, client, scopes, form.get("resource", ""), ends)

    def _refresh(self, client: str, form: dict[str, str]) -> Response:
        given = form.get("refresh_token", "")
        found = self.refresh.get(given)
        if found is None or found.client != client:
            self.ledger.append(("refresh refused", given))
            return 400, {"error": "invalid_grant"}, {}
        if found.is_spent_since is not None and self.detects_reuse:
            self.ledger.append(("reuse", given))
            family = found.family
            for tokens in (self.access, self.refresh):
                for key in [key for key, one in tokens.items() if one.family == family]:
                    del tokens[key]
            return 400, {"error": "invalid_grant"}, {}
        self.ledger.append(("refresh", given))
        token = self._new(found.account, client, found.scopes, form)
        token.family = found.family
        if self.rotates:
            found.is_spent_since = time.time()
        return self._issue(token, None if self.rotates else "")

    def _issue(self, token: IssuedToken, refresh: str | None) -> Response:
        """Give a token out; ``refresh`` is empty where the old one stays good."""
        access = secrets.token_urlsafe(24)
        if self.keys:
            access = self.token(token.resource, sub=token.account, scope=token.scopes, jti=access)
        token.family = token.family or access
        self.access[access] = token
        answer: Json = {"access_token": access, "token_type": "Bearer"}
        if self.life is not None:
            answer["expires_in"] = self.life
        if refresh is None and self.gives_refresh:
            answer["refresh_token"] = made = secrets.token_urlsafe(24)
            self.refresh[made] = token
        self.ledger.append(("issued", access))
        return 200, _merged(answer, self.token_fields), {}


_METADATA: Final = ("oauth-authorization-server", "openid-configuration")


def _merged(own: Json, changes: Json) -> Json:
    return {key: value for key, value in {**own, **changes}.items() if value is not None}


def _encode(status: int, body: Json | str | bytes | None, headers: dict[str, str]) -> bytes:
    data = body if isinstance(body, bytes) else b""
    if isinstance(body, str):
        data = body.encode()
    elif isinstance(body, dict):
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(data)}\r\n\r\n".encode() + data
