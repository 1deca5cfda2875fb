"""RestFront: authenticates REST requests and passes them to the app of the routes. A bare ASGI app.

It also refuses bodies that are too large. That app is loaded in a thread: until then
requests get 503. The only route answered here is ``/metrics``, which does not need that app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcp_junction.api.errors import ErrorAnswer, to_answer
from mcp_junction.api.rights import DENIAL_CODES, PRINCIPAL, PUBLIC, Right, check, needs
from mcp_junction.audit.denials import Denial
from mcp_junction.errors import (
    IssuerUnavailable,
    RequestError,
    ScopesMissing,
    TokenRefused,
)
from mcp_junction.identity.challenges import make_challenge
from mcp_junction.identity.keys import KeyRing
from mcp_junction.listener.http.guard import describe_denial
from mcp_junction.listener.http.host import METRICS
from mcp_junction.policy.principal import Principal
from mcp_junction.telemetry.exposition import CONTENT_TYPE

log = logging.getLogger("mcp_junction.api")

Scope = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_BODIED: Final = ("POST", "PATCH", "PUT")
_METRICS_NEED: Final = needs(Right.READ_METRICS)
_NEEDED: Final = "a key is needed: Authorization: Bearer …"


class RestFront:
    """Authenticates requests and hands them to the routes."""

    def __init__(
        self,
        keys: KeyRing,
        make: Callable[[], App],
        metrics: Callable[[], bytes],
        deny: Callable[[Denial], None],
        refresh: Callable[[], Awaitable[object]],
    ) -> None:
        """``refresh`` reads keys and grants again."""
        self._keys = keys
        self._refresh = refresh
        self._deny = deny
        self._make = make
        self._metrics = metrics
        self.app: App | None = None
        """The app of the routes, once it is loaded."""
        self._is_broken = False
        self._draining = False

    async def load(self) -> None:
        """Load the app of the routes, in a thread, since servers are being connected meanwhile.

        When that fails, the rest of the service goes on, and requests are answered with an error.
        """
        try:
            self.app = await asyncio.to_thread(self._make)
        except Exception:  # a broken install: MCP clients are served all the same
            log.exception("the routes of the REST API cannot be loaded; reinstall the program")
            self._is_broken = True

    def drain(self) -> None:
        """Take no more requests."""
        self._draining = True

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        principal: Principal | None = None
        try:
            scope[PRINCIPAL] = principal = await self._admit(scope)
            if (exchange := scope.get("exchange")) is not None:
                exchange.principal = principal
            if scope["path"] == METRICS:
                check(principal, _METRICS_NEED)
                await self._show_metrics(scope["method"], send)
                return
            app = self._get_app()
        except RequestError as error:
            if error.code in DENIAL_CODES:
                self._deny(describe_denial(scope, error.detail, principal))
            await respond(send, to_answer(error, scope["path"]))
            return
        # The app needs only the body, and the message that the client has left.
        await app(scope, receive, send)

    async def refuse(self, send: Send, path: str, code: str, detail: str) -> None:
        """Refuse a request that was not read."""
        await respond(send, to_answer(RequestError(code, detail), path))

    async def _admit(self, scope: Scope) -> Principal | None:
        """Check a request, and return its principal; None without a key, on public paths only."""
        principal = await self._identify(scope["headers"], scope["path"])
        if principal is None and scope["path"].rstrip("/") not in PUBLIC:
            raise self._unauthenticated(scope["path"])
        if self._draining and scope["path"] != METRICS:
            context = {"delivery": "not_sent"}
            again = {"retry-after": "1"}
            raise RequestError("SERVER_UNAVAILABLE", "Junction is ending", context, again)
        if b"%2f" in scope["raw_path"].lower() or b"%00" in scope["raw_path"]:
            raise RequestError("NOT_FOUND", "there is nothing here; see /api/v1/docs")
        exchange = scope.get("exchange")
        if exchange is not None and exchange.body is None:
            raise RequestError("PAYLOAD_TOO_LARGE", "the body is over the limit")
        if scope["method"] in _BODIED:
            _check_type(scope["headers"])
        return principal

    async def _identify(self, headers: list[tuple[bytes, bytes]], path: str) -> Principal | None:
        """Return the principal of a request's key or token; None without either."""
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            return None
        principal = self._keys.principal(given[0]) if len(given) == 1 else None
        if principal is None and self._keys.is_blind:
            words = "keys cannot be checked now: the store is away"
            raise RequestError("STORE_UNAVAILABLE", words)
        try:
            if principal is None and len(given) == 1:
                principal = await self._verify(given[0])
        except TokenRefused as refused:
            raise self._unauthenticated(path, refused) from None
        except IssuerUnavailable as error:
            again = {"retry-after": "30"}
            raise RequestError("STORE_UNAVAILABLE", str(error), headers=again) from None
        if principal is None:
            raise self._unauthenticated(path)
        return principal

    async def _verify(self, authorization: bytes) -> Principal | None:
        """Verify an access token, or a key that was just made."""
        found = await self._keys.find_new(authorization, self._refresh)
        return await self._keys.verify(authorization) if found is None else found

    def _unauthenticated(self, path: str, refused: TokenRefused | None = None) -> RequestError:
        told = {"www-authenticate": make_challenge(self._keys.tokens, path, refused)}
        code = "FORBIDDEN" if isinstance(refused, ScopesMissing) else "UNAUTHENTICATED"
        return RequestError(code, str(refused or _NEEDED), headers=told)

    async def _show_metrics(self, method: str, send: Send) -> None:
        if method not in ("GET", "HEAD"):
            allowed = {"allow": "GET, HEAD"}
            words = "only GET and HEAD are for this address"
            raise RequestError("METHOD_NOT_ALLOWED", words, headers=allowed)
        await _send(send, 200, self._metrics(), [(b"content-type", CONTENT_TYPE)])

    def _get_app(self) -> App:
        if self._is_broken:
            raise RequestError("INTERNAL_ERROR", "an internal error of Junction")
        if self.app is None:
            words = "the REST API is not loaded yet; ask again in a second"
            raise RequestError("SERVER_UNAVAILABLE", words, headers={"retry-after": "1"})
        return self.app


def _check_type(headers: list[tuple[bytes, bytes]]) -> None:
    """Refuse a body that is not JSON: forms of foreign web pages, too."""
    given = dict(headers)
    sized = given.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in given
    kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and (sized or kind):
        raise RequestError("UNSUPPORTED_MEDIA_TYPE", "send content-type: application/json")


async def respond(send: Send, answer: ErrorAnswer) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(n.encode(), v.encode("latin-1", "replace")) for n, v in answer.headers.items()]
    await _send(send, answer.status, answer.body, headers)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
