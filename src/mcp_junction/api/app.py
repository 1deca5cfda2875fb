"""The app of the REST API, with every route. Slow to import: load it before listening."""

from __future__ import annotations

from mcp_junction.api import (
    approvals,
    calls,
    explaining,
    mcp_audit,
    mcp_escalations,
    mcp_metrics,
    mcp_tools,
    openapi,
    policies,
    registration,
    server_auth,
    servers,
    skills,
    state,
    tools,
)
from mcp_junction.api.context import ApiContext
from mcp_junction.api.errors import to_answer
from mcp_junction.api.rights import PRINCIPAL, check, rights_needed
from mcp_junction.errors import NotPermitted, RequestError
from mcp_junction.identity.challenges import make_scope_challenge
from mcp_junction.listener.http.guard import describe_denial
from mcp_junction.web.application import Guard, Respond, WebApp
from mcp_junction.web.messages import Response, Scope
from mcp_junction.web.routing import Operation

ROUTERS = (
    servers.ROUTES,
    server_auth.ROUTES,
    tools.ROUTES,
    calls.ROUTES,
    mcp_tools.ROUTES,
    registration.ROUTES,
    mcp_audit.ROUTES,
    policies.ROUTES,
    explaining.ROUTES,
    approvals.ROUTES,
    mcp_escalations.ROUTES,
    mcp_metrics.ROUTES,
    skills.ROUTES,
    state.ROUTES,
)


def make_app(context: ApiContext) -> WebApp:
    """Make the app for one ApiContext. Every route passes the guard."""
    return WebApp(
        [*ROUTERS, openapi.show_openapi, openapi.show_docs],
        context=context,
        guard=_make_guard(context),
        respond=_make_responder(context),
    )


def _make_guard(context: ApiContext) -> Guard:
    """Make the guard of all routes: it refuses, and audits, callers without the right."""

    def guard(scope: Scope, operation: Operation) -> None:
        principal = scope.get(PRINCIPAL)
        try:
            check(principal, operation.opt)
        except RequestError as error:
            context.denials.add(describe_denial(scope, error.detail, principal))
            tokens = context.access_tokens
            if tokens is not None and principal is not None and tokens.is_own(principal):
                needed = rights_needed(operation.opt)
                challenge = make_scope_challenge(tokens, scope["path"], needed)
                error.headers["www-authenticate"] = challenge
            raise

    return guard


def _make_responder(context: ApiContext) -> Respond:
    """Make what answers errors of routes; denials are audited, as those of the guard are."""

    def respond(scope: Scope, error: Exception) -> Response[bytes]:
        is_denial = isinstance(error, RequestError) and error.code == "DENIED"
        if is_denial or isinstance(error, NotPermitted):
            context.denials.add(describe_denial(scope, str(error), scope.get(PRINCIPAL)))
        answer = to_answer(error, scope["path"])
        return Response(answer.body, status_code=answer.status, headers=answer.headers)

    return respond
