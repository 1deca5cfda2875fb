"""The Litestar app of the REST API, with every route. Slow to import: load it before listening.

Litestar's plugins for pydantic and attrs are left out: nothing here uses them, and they take 10 MiB
and 70 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Litestar, Response
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import Guard

from mcp_junction.api import (
    agents,
    approvals,
    calls,
    events,
    invoke,
    mcp_audit,
    mcp_circuits,
    mcp_escalations,
    mcp_metrics,
    mcp_tools,
    openapi,
    policies,
    registration,
    server_auth,
    servers,
    settings,
    simulating,
    skills,
    suggestions,
    tools,
    webhooks,
)
from mcp_junction.api.context import ApiContext
from mcp_junction.api.errors import to_answer
from mcp_junction.api.rights import PRINCIPAL, check, rights_needed
from mcp_junction.api.routes import AnyRequest
from mcp_junction.errors import NotPermitted, RequestError
from mcp_junction.identity.challenges import make_scope_challenge
from mcp_junction.listener.http.guard import describe_denial

ROUTERS = (
    servers.ROUTES,
    servers.CONTROL_ROUTES,
    server_auth.ROUTES,
    tools.ROUTES,
    calls.ROUTES,
    tools.SEARCH_ROUTES,
    mcp_tools.ROUTES,
    registration.ROUTES,
    mcp_audit.ROUTES,
    invoke.ROUTES,
    policies.ROUTES,
    agents.ROUTES,
    approvals.ROUTES,
    simulating.ROUTES,
    webhooks.ROUTES,
    mcp_circuits.ROUTES,
    mcp_escalations.ROUTES,
    mcp_metrics.ROUTES,
    skills.ROUTES,
    suggestions.ROUTES,
    events.ROUTES,
    servers.STATE_ROUTES,
    settings.ROUTES,
)


class _Routes(Litestar):
    """Litestar with only the plugin that our routes need."""

    @staticmethod
    def _get_default_plugins(plugins: list[Any]) -> list[Any]:
        return [*plugins, MsgspecDIPlugin()]


def make_app(context: ApiContext) -> Litestar:
    """Make the app for one ApiContext. Every route passes the guard."""
    return _Routes(
        [*ROUTERS, openapi.show_openapi, openapi.show_docs],
        dependencies={"context": Provide(lambda: context, sync_to_thread=False, use_cache=True)},
        guards=[_make_guard(context)],
        exception_handlers={Exception: _make_responder(context)},
        openapi_config=openapi.CONFIG,
        on_app_init=[openapi.drop_default_pages],
        logging_config=None,
        debug=False,
    )


def _make_guard(context: ApiContext) -> Guard:
    """Make the guard of all routes: it refuses, and audits, callers without the right."""

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:  # a plain function would be run in a thread
        scope: Any = connection.scope
        principal = scope.get(PRINCIPAL)
        try:
            check(principal, handler.opt)
        except RequestError as error:
            context.denials.add(describe_denial(scope, error.detail, principal))
            tokens = context.access_tokens
            if tokens is not None and principal is not None and tokens.is_own(principal):
                challenge = make_scope_challenge(tokens, scope["path"], rights_needed(handler.opt))
                error.headers["www-authenticate"] = challenge
            raise

    return guard


def _make_responder(context: ApiContext) -> Callable[[AnyRequest, Exception], Response[bytes]]:
    """Make what answers errors of routes; denials are audited, as those of the guard are."""

    def respond(request: AnyRequest, error: Exception) -> Response[bytes]:
        scope: Any = request.scope
        is_denial = isinstance(error, RequestError) and error.code == "DENIED"
        if is_denial or isinstance(error, NotPermitted):
            context.denials.add(describe_denial(scope, str(error), scope.get(PRINCIPAL)))
        answer = to_answer(error, scope["path"])
        return Response(
            answer.body,
            status_code=answer.status,
            headers=answer.headers,
            media_type="application/json",
        )

    return respond
