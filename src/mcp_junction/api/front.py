"""Front: the REST API as the listener sees it: a bare ASGI app, there from the beginning.

It finds out who is asking, keeps out what is too large, and hands the rest to the real app, which
is loaded behind it in a thread: a request that comes first waits for it. It knows no route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from mcp_junction.api.access import PRINCIPAL, PUBLIC
from mcp_junction.api.errors import ErrorAnswer, answer_to
from mcp_junction.errors import RequestError
from mcp_junction.policy.principal import Principal
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.api")

Scope = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_BODIED: Final = ("POST", "PATCH", "PUT")


class Keys(Protocol):
    """Who a key speaks for."""

    def principal(self, authorization: bytes) -> Principal | None: ...

    @property
    def is_blind(self) -> bool:
        """Whether no key can be checked now."""
        ...


class Front:
    """What stands before the routes."""

    def __init__(self, keys: Keys, make: Callable[[], App]) -> None:
        self._keys = keys
        self._make = make
        self.app: App | None = None
        """What stands behind it, once that is loaded."""
        self._loading: asyncio.Task[App] | None = None
        self._begun = asyncio.Event()
        self._draining = False

    def load(self, tasks: TaskScope) -> None:
        """Begin to load what stands behind; not on the loop, which has better things to do."""
        if self._loading is None:
            self._loading = tasks.spawn(asyncio.to_thread(self._make))
            self._begun.set()

    def drain(self) -> None:
        """Take no more requests."""
        self._draining = True

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        try:
            scope[PRINCIPAL] = self._admitted(scope)
            app = self.app or await self._loaded()
        except RequestError as error:
            await respond(send, answer_to(error))
            return
        # What the app needs of our own server is the body, and to hear that the client has left.
        await app(scope, receive, send)

    async def refuse(self, send: Send, code: str, detail: str) -> None:
        """Answer a request that does not come so far as to be looked at."""
        await respond(send, answer_to(RequestError(code, detail)))

    def _admitted(self, scope: Scope) -> Principal | None:
        """Whom a request is from; None for anyone, who is let in where anyone is."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        principal = self._keys.principal(given[0]) if len(given) == 1 else None
        if principal is None and given and self._keys.is_blind:
            raise RequestError("STORE_UNAVAILABLE", "keys cannot be checked now: the store is away")
        if principal is None and (given or scope["path"].rstrip("/") not in PUBLIC):
            raise RequestError("UNAUTHENTICATED", "a key is needed: Authorization: Bearer …")
        if self._draining:
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

    async def _loaded(self) -> App:
        if self._loading is None:  # we are listening since a moment ago
            await self._begun.wait()
        assert self._loading is not None, "it has begun"
        try:
            self.app = await asyncio.shield(self._loading)
        except Exception:  # a fault of ours must still be answered
            log.exception("the routes of the REST API cannot be loaded")
            raise RequestError("INTERNAL_ERROR", "an internal error of Junction") from None
        return self.app


def _check_type(headers: list[tuple[bytes, bytes]]) -> None:
    """What has a body has JSON: also so that no form of a foreign page can be posted here."""
    given = dict(headers)
    sized = given.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in given
    kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and (sized or kind):
        raise RequestError("UNSUPPORTED_MEDIA_TYPE", "send content-type: application/json")


async def respond(send: Send, answer: ErrorAnswer) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(n.encode(), v.encode("latin-1", "replace")) for n, v in answer.headers.items()]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
