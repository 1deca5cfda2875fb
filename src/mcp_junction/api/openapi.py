"""The description of the API: OpenAPI from the routes, with the bodies they read themselves."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Litestar, Router
from litestar.config.app import AppConfig
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins import InitPlugin

from mcp_junction import __version__
from mcp_junction.api.access import ANYONE, RIGHTS
from mcp_junction.api.routes import BODY
from mcp_junction.policy.roles import KEY_ROLES

_UNUSED: Final = "/api/v1/unused"


class _OwnPages(InitPlugin):
    """Takes away the framework's pages about the API: ours are in ``docs.py``."""

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.route_handlers = [
            one
            for one in app_config.route_handlers
            if not (isinstance(one, Router) and one.path == _UNUSED)
        ]
        return app_config


def own_pages(config: AppConfig) -> AppConfig:
    """To be called when an app begins; it is the last plugin that sees the others' pages."""
    config.plugins.append(_OwnPages())
    return config


CONFIG: Final = OpenAPIConfig(
    title="Junction",
    version=__version__,
    description="One MCP endpoint for many MCP servers: its administration, and tool calls.",
    components=Components(
        security_schemes={"key": SecurityScheme(type="http", scheme="bearer")},
    ),
    security=[{"key": []}],
    use_handler_docstrings=False,
    path=_UNUSED,
)
_REF: Final = "#/components/schemas/{name}"


def describe(app: Litestar) -> dict[str, Any]:
    """The whole document."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    bodies: dict[str, type[Any]] = {}
    for route in app.routes:
        for handler in getattr(route, "route_handlers", []):
            operations = document["paths"].get(route.path_format, {})
            for method in handler.http_methods:
                operation = operations.get(method.lower())
                if operation is not None:
                    _complete(operation, handler.opt)
            if BODY in handler.opt:
                bodies[handler.opt[BODY].__name__] = handler.opt[BODY]
    _, schemas = msgspec.json.schema_components(bodies.values(), ref_template=_REF)
    document["components"].setdefault("schemas", {}).update(schemas)
    return document


def _complete(operation: dict[str, Any], options: dict[str, Any]) -> None:
    """Add what a route's options say: the type of its body, and who may use it."""
    body = options.get(BODY)
    if body is not None:
        schema = {"$ref": _REF.format(name=body.__name__)}
        operation["requestBody"] = {
            "content": {"application/json": {"schema": schema}},
            "required": bool(msgspec.structs.fields(body))
            and any(field.required for field in msgspec.structs.fields(body)),
        }
    bad_request = operation["responses"].get("400", {})
    if "Bad request syntax" in bad_request.get("description", ""):
        del operation["responses"]["400"]  # the framework's own: here it is a 422
    right = options.get("needs")
    if right in ANYONE:
        operation["security"] = []
    else:
        roles = [role.value for role in KEY_ROLES if right in RIGHTS[role]]
        operation["x-roles"] = roles
