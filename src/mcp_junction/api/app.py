"""The app of the REST API, with every route. Slow to import: load it before listening.

``/api/v1/openapi.json`` is OpenAPI from the routes; ``/api/v1/docs`` the same as a page.
"""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any, Final

import msgspec

from mcp_junction import __version__
from mcp_junction.api import (
    approvals,
    audit,
    calls,
    explaining,
    mcp_metrics,
    mcp_tools,
    policies,
    registration,
    server_auth,
    servers,
    skills,
    state,
    tools,
)
from mcp_junction.api.context import ApiContext
from mcp_junction.api.conventions import AnyRequest, body_reader
from mcp_junction.api.errors import to_answer
from mcp_junction.api.rights import (
    ANYONE,
    BODY,
    OF,
    PRINCIPAL,
    RIGHTS,
    Right,
    check,
    needs,
    rights_needed,
)
from mcp_junction.errors import NotPermitted, RequestError
from mcp_junction.identity.challenges import make_scope_challenge
from mcp_junction.listener.http.guard import describe_denial
from mcp_junction.policy.principal import KEY_ROLES
from mcp_junction.web.application import (
    REF,
    Guard,
    Respond,
    WebApp,
    describe_operations,
    path_format,
)
from mcp_junction.web.messages import HTML, Response, Scope
from mcp_junction.web.routing import Operation, get

ROUTERS = (
    servers.ROUTES,
    server_auth.ROUTES,
    tools.ROUTES,
    calls.ROUTES,
    mcp_tools.ROUTES,
    registration.ROUTES,
    policies.ROUTES,
    explaining.ROUTES,
    approvals.ROUTES,
    mcp_metrics.ROUTES,
    audit.ROUTES,
    skills.ROUTES,
    state.ROUTES,
)


def make_app(context: ApiContext) -> WebApp:
    """Make the app for one ApiContext. Every route passes the guard."""
    return WebApp(
        [*ROUTERS, show_openapi, show_docs],
        context=context,
        guard=_make_guard(context),
        respond=_make_responder(context),
        body_reader=body_reader,
    )


def _make_guard(context: ApiContext) -> Guard:
    """Make the guard of all routes: it refuses, and audits, callers without the right."""

    def guard(scope: Scope, operation: Operation) -> None:
        principal = scope.get(PRINCIPAL)
        try:
            check(principal, operation.opt)
        except RequestError as error:
            context.denials.add(describe_denial(scope, error.detail, principal))
            tokens = context.keys.tokens
            if tokens is not None and principal is not None and tokens.is_own(principal):
                needed = rights_needed(operation.opt)
                challenge = make_scope_challenge(tokens, scope["path"], needed)
                error.headers["www-authenticate"] = challenge
            raise

    return guard


def _make_responder(context: ApiContext) -> Respond:
    """Make what answers errors of routes; denials are audited, as those of the guard are."""

    def respond(scope: Scope, error: Exception, operation: Operation | None) -> Response[bytes]:
        is_denial = isinstance(error, RequestError) and error.code == "DENIED"
        if is_denial or isinstance(error, NotPermitted):
            context.denials.add(describe_denial(scope, str(error), scope.get(PRINCIPAL)))
        answer = to_answer(error, scope["path"], "" if operation is None else operation.opt.get(OF))
        return Response(answer.body, status_code=answer.status, headers=answer.headers)

    return respond


# -- what the routes say of themselves

_ABOUT: Final = {
    "openapi": "3.1.0",
    "info": {
        "title": "Junction",
        "version": __version__,
        "description": "One MCP endpoint for many MCP servers: its administration, and tool calls.",
    },
    "servers": [{"url": "/"}],
    "security": [{"key": []}],
}
_SCHEMES: Final = {"key": {"type": "http", "scheme": "bearer"}}


def describe(app: WebApp) -> dict[str, Any]:
    """Build the OpenAPI document of an app."""
    shown = [one for one in app.operations if one.include_in_schema]
    bodies = [one.opt[BODY] for one in shown if BODY in one.opt]
    paths, schemas = describe_operations(shown, bodies)
    for one in shown:
        _complete(paths[path_format(one)][one.method.lower()], one.opt)
    components = {"schemas": schemas, "securitySchemes": _SCHEMES}
    return {**_ABOUT, "paths": dict(sorted(paths.items())), "components": components}


def _complete(operation: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Add to an operation the model of its body and the roles that may use it."""
    body = options.get(BODY)
    if body is not None:
        schema = {"$ref": REF.format(name=body.__name__)}
        operation["requestBody"] = {
            "content": {"application/json": {"schema": schema}},
            "required": any(field.required for field in msgspec.structs.fields(body)),
        }
    rights = rights_needed(options)
    if ANYONE.issuperset(rights):
        operation["security"] = []
    else:
        roles = [role.value for role in KEY_ROLES if not RIGHTS[role].isdisjoint(rights)]
        operation["x-roles"] = roles


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1d2330; background: #fff; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #d5d9e2; text-transform: capitalize; }
details { border: 1px solid #d5d9e2; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } summary span { color: #59617a; }
b { display: inline-block; width: 4.5rem; } code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { background: #f4f5f8; padding: .6rem; overflow-x: auto; border-radius: 4px; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem 1rem .15rem 0;
        vertical-align: top; }
@media (prefers-color-scheme: dark) { body { color: #e6e8ee; background: #16181d; }
  pre { background: #22252d; } details, h2 { border-color: #3a3f4b; }
  summary span { color: #a2a9bb; } a { color: #8ab4ff; } }
"""
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_CLOSED = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


_making = threading.Lock()


@get(
    "/api/v1/openapi.json",
    opt=needs(Right.READ_DOCS),
    include_in_schema=False,
)
async def show_openapi(request: AnyRequest) -> Response[bytes]:
    document = await asyncio.to_thread(_make_once, _document, request.app)
    return Response(document)


@get(
    "/api/v1/docs",
    opt=needs(Right.READ_DOCS),
    include_in_schema=False,
)
async def show_docs(request: AnyRequest) -> Response[bytes]:
    page = await asyncio.to_thread(_make_once, _page, request.app)
    return Response(page, media_type=HTML, headers=_CLOSED)


def _make_once(make: Callable[[WebApp], bytes], app: WebApp) -> bytes:
    """Make a document, in one thread at a time."""
    with _making:
        return make(app)


@cache
def _document(app: WebApp) -> bytes:
    return msgspec.json.encode(describe(app))


@cache
def _page(app: WebApp) -> bytes:
    document = msgspec.json.decode(_document(app))
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["other"])[0]
            by_tag.setdefault(tag, []).append(_operation(path, method, operation))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(found)}" for tag, found in by_tag.items()]
    schemas = document["components"]["schemas"].items()
    shapes = [
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<pre>{_json(schema)}</pre></details>"
        for name, schema in sorted(schemas)
    ]
    info = document["info"]
    head = (
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])}</p><p>Send a key with every request:"
        " <code>Authorization: Bearer …</code>. For programs:"
        ' <a href="/api/v1/openapi.json">openapi.json</a>.</p>'
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Junction: REST</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{head}{''.join(parts)}"
        f"<h2>Types</h2>{''.join(shapes)}</body></html>"
    )
    return page.encode()


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    roles = ", ".join(operation.get("x-roles", ["anyone"]))
    title = (
        f"<summary><b>{method.upper()}</b><code>{escape(path)}</code>"
        f" <span>{escape(operation.get('summary', ''))}</span></summary>"
    )
    words = escape(operation.get("description", ""))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    sent = f"<p>Body: {_link(body['schema'])}</p>" if body else ""
    rows = [
        (f"{one['name']} ({one['in']})", one.get("description", ""))
        for one in operation.get("parameters", [])
    ]
    answers = [
        (status, answer.get("description", "") or "")
        for status, answer in sorted(operation["responses"].items())
    ]
    return (
        f"<details>{title}<p>{words}</p><p>For: {escape(roles)}</p>{sent}"
        f"{_table(rows)}{_table(answers)}</details>"
    )


def _table(rows: list[tuple[str, str]]) -> str:
    cells = [f"<tr><td><code>{escape(a)}</code></td><td>{escape(b)}</td></tr>" for a, b in rows]
    return f"<table>{''.join(cells)}</table>" if cells else ""


def _link(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>'


def _json(value: Any) -> str:
    return escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
