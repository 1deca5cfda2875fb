"""HttpHost: what the HTTP listener needs of the service. Protocols, and the types of ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.policy.principal import Principal
from mcp_junction.sessions.session import Session

METRICS: Final = "/metrics"

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class HttpHost(Protocol):
    """What the listener needs of the service: principals and endpoints."""

    def principal(self, headers: dict[bytes, bytes], scope: Scope) -> Principal | None:
        """Who a request is from; None when it must be refused."""
        ...

    def principal_of(self, authorization: bytes) -> Principal | None:
        """Whose key or access token an Authorization header shows; None when it is refused."""
        ...

    def endpoint(self, path: str) -> Endpoint | None:
        """The endpoint a path names; None when there is none."""
        ...

    def can_see(self, principal: Principal, endpoint: Endpoint) -> bool:
        """Whether an endpoint exists for a principal."""
        ...

    def open_session(
        self, principal: Principal, endpoint: Endpoint, send: Callable[[bytes], None]
    ) -> Session: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def down(self) -> list[str]:
        """Names of what is down and keeps the service from being ready."""
        ...

    @property
    def warnings(self) -> dict[str, int]:
        """Counts of what an operator should look at though the service is ready."""
        ...


class RestApp(Protocol):
    """What answers under ``/api/`` and at ``/metrics``: an ASGI app that knows its own keys."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def refuse(self, send: Send, path: str, code: str, detail: str) -> None:
        """Answer a request that is refused."""
        ...
