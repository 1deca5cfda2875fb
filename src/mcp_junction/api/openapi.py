"""The description of the API: OpenAPI from the routes, with the bodies they read themselves."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from mcp_junction import __version__
from mcp_junction.api.access import ANYONE, RIGHTS
from mcp_junction.api.routes import BODY

CONFIG: Final = OpenAPIConfig(
    title="Junction",
    version=__version__,
    description="One MCP endpoint for many MCP servers: its administration, and tool calls.",
    components=Components(
        security_schemes={"key": SecurityScheme(type="http", scheme="bearer")},
    ),
    security=[{"key": []}],
    use_handler_docstrings=False,
    render_plugins=[],
    path="/api/v1/unused",
    openapi_router=None,
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
    right = options.get("needs")
    if right in ANYONE:
        operation["security"] = []
    else:
        roles = [role.value for role, rights in RIGHTS.items() if right in rights]
        operation["x-roles"] = roles
