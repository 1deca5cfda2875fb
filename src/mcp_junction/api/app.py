"""The Litestar app: every route, in one place. Importing this module is what takes a while.

Litestar would also load its plugins for pydantic and attrs where these are installed, which other
packages see to; nothing here uses them, and they take 10 MiB and 70 ms.
"""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Response
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import Guard

from mcp_junction.api import calls, events, search, servers, skills, tools
from mcp_junction.api import openapi as docs
from mcp_junction.api import servers as lifecycle
from mcp_junction.api import servers as state
from mcp_junction.api import tools as tool_changes
from mcp_junction.api.context import ApiContext
from mcp_junction.api.errors import answer_to
from mcp_junction.api.openapi import CONFIG, own_pages
from mcp_junction.api.requests import AnyRequest
from mcp_junction.api.rights import PRINCIPAL, check
from mcp_junction.errors import RequestError
from mcp_junction.listener.http.refusals import describe_denial

ROUTERS = (
    servers.ROUTES,
    lifecycle.CONTROL_ROUTES,
    tools.ROUTES,
    tool_changes.REVIEW_ROUTES,
    calls.ROUTES,
    search.ROUTES,
    skills.ROUTES,
    events.ROUTES,
    state.STATE_ROUTES,
)


class _Routes(Litestar):
    """Litestar with the plugins that our routes need, and no others."""

    @staticmethod
    def _get_default_plugins(plugins: list[Any]) -> list[Any]:
        return [*plugins, MsgspecDIPlugin()]


def make_app(room: ApiContext) -> Litestar:
    """The routes over one room. Every one of them passes the guard."""
    return _Routes(
        [*ROUTERS, docs.show_openapi, docs.show_docs],
        dependencies={"room": Provide(lambda: room, sync_to_thread=False, use_cache=True)},
        guards=[_make_guard(room)],
        exception_handlers={Exception: _error},
        openapi_config=CONFIG,
        on_app_init=[own_pages],
        logging_config=None,
        debug=False,
    )


def _make_guard(room: ApiContext) -> Guard:
    """Make the guard of all routes: it refuses callers without the right, and tells the audit."""

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:  # a plain function would be run in a thread
        scope: Any = connection.scope
        principal = scope.get(PRINCIPAL)
        try:
            check(principal, handler.opt)
        except RequestError as error:
            room.denials.add(describe_denial(scope, error.detail, principal))
            raise

    return guard


def _error(_: AnyRequest, error: Exception) -> Response[bytes]:
    answer = answer_to(error)
    return Response(
        answer.body,
        status_code=answer.status,
        headers=answer.headers,
        media_type="application/json",
    )
