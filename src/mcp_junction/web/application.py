"""WebApp: routes requests to operations, and describes these in OpenAPI. A bare ASGI app."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from mcp_junction.errors import RequestError
from mcp_junction.web.messages import JSON, Receive, Request, Response, Scope, Send, Stream
from mcp_junction.web.routing import Operation, ResponseSpec, Router, flatten

Guard = Callable[[Scope, Operation], None]
"""Raises RequestError for a request that may not reach an operation."""
Respond = Callable[[Scope, Exception, Operation | None], Response[bytes]]
"""Makes the answer to an error of an operation, or of a request that reaches none."""
ReadBody = Callable[[Request], Awaitable[Any]]
_REST: Final = ":path}"
_NOTHING: Final = "there is nothing here; see /api/v1/docs"
_NO_METHOD: Final = "this method is not for this address; see /api/v1/docs"


class _BoundOperation:
    """An operation of an app, with the parameters of its handler."""

    def __init__(self, operation: Operation, read_body: ReadBody | None) -> None:
        self.operation = operation
        self.read_body = read_body
        self._given, self._parameters, _ = operation.read_signature()
        self._places = {one.place for one in self._parameters}

    def read(self, request: Request, context: Any, path: dict[str, str]) -> dict[str, Any]:
        """Read the parameters of the handler, but for the body. Raises RequestError."""
        offered = {"request": request, "context": context, "body": None}
        values: dict[str, Any] = {name: offered[name] for name in self._given}
        places = {"path": path}
        if "query" in self._places:
            places["query"] = _read_query(request.scope["query_string"])
        if "header" in self._places:
            places["header"] = _read_headers(request.scope["headers"])
        return values | {one.key: one.read(places[one.place]) for one in self._parameters}


def _read_query(query: bytes) -> dict[str, str]:
    try:
        text = query.decode("ascii", "replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise RequestError("VALIDATION_ERROR", "the query has too many parameters") from None


def _read_headers(given: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in given}


class _Node:
    """A place in the tree of paths: what follows it, and the operations there."""

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.variable: _Node | None = None
        self.rest: _Node | None = None
        self.methods: dict[str, tuple[_BoundOperation, list[str]]] = {}


class WebApp:
    """Answers requests by operations. Every request passes the guard."""

    def __init__(
        self,
        routes: Sequence[Operation | Router],
        *,
        context: Any,
        guard: Guard,
        respond: Respond,
        body_reader: Callable[[Operation], ReadBody | None] = lambda _: None,
    ) -> None:
        """``body_reader`` returns what reads the bodies of an operation, if it is read for it."""
        self.operations: list[Operation] = []
        self._context = context
        self._guard = guard
        self._respond = respond
        self._body_reader = body_reader
        self._root = _Node()
        for operation in flatten(routes):
            self.register(operation)

    def register(self, operation: Operation) -> None:
        """Add an operation. Raises ValueError if there is one of its path and method."""
        node, names = self._root, []
        for part in operation.path.strip("/").split("/"):
            if not part.startswith("{"):
                node = node.fixed.setdefault(part, _Node())
                continue
            names.append(part[1:].partition(":")[0])
            if part.endswith(_REST):
                node.rest = node = node.rest or _Node()
            else:
                node.variable = node = node.variable or _Node()
        if operation.method in node.methods:
            raise ValueError(f"two operations at {operation.method} {operation.path}")
        node.methods[operation.method] = (
            _BoundOperation(operation, self._body_reader(operation)),
            names,
        )
        self.operations.append(operation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bound: _BoundOperation | None = None
        try:
            bound, path = self._find(scope)
            self._guard(scope, bound.operation)
            request = Request(self, scope, receive)
            values = bound.read(request, self._context, path)
            if bound.read_body is not None:
                body = await bound.read_body(request)
                values |= {"body": body} if "body" in values else {}
            answer = await bound.operation.handler(**values)
            if not isinstance(answer, Response | Stream):
                answer = Response(answer)
            transmit = answer.prepare(bound.operation.status)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
            operation = None if bound is None else bound.operation
            transmit = self._respond(scope, error, operation).prepare(500)
        await transmit(receive, send)

    def _find(self, scope: Scope) -> tuple[_BoundOperation, dict[str, str]]:
        """Find the operation of a request, and the parameters in its path."""
        parts = scope["path"].rstrip("/").split("/")[1:]
        values: list[str] = []
        node = _walk(self._root, parts, values)
        if node is None or not node.methods:
            raise RequestError("NOT_FOUND", _NOTHING)
        found = node.methods.get(scope["method"])
        if found is None:
            allowed = {"allow": ", ".join(sorted(node.methods))}
            raise RequestError("METHOD_NOT_ALLOWED", _NO_METHOD, headers=allowed)
        bound, names = found
        return bound, dict(zip(names, values, strict=True))


def _walk(node: _Node, parts: Sequence[str], values: list[str]) -> _Node | None:
    """Follow the parts of a path, and note those that parameters stand for.

    A fixed part comes before a parameter, and that before the rest of the path.
    """
    if not parts:
        return node if node.methods else None
    part, following = parts[0], parts[1:]
    if part in node.fixed:
        found = _walk(node.fixed[part], following, values)
        if found is not None:
            return found
    if node.variable is not None and part:
        values.append(part)
        found = _walk(node.variable, following, values)
        if found is not None:
            return found
        values.pop()
    if node.rest is not None:
        values.append("/" + "/".join(parts))
        return node.rest
    return None


# -- OpenAPI

REF: Final = "#/components/schemas/{name}"
_CONVERTER: Final = re.compile(r":\w+}")


def path_format(operation: Operation) -> str:
    """The path of an operation as OpenAPI writes it."""
    return _CONVERTER.sub("}", operation.path)


def describe_operations(
    operations: Sequence[Operation], more: Sequence[type[Any]] = ()
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Describe operations; returns the paths, and the schemas of all types, of ``more`` as well."""
    shown = [one for one in operations if one.include_in_schema]
    answers = {id(one): _answers(one) for one in shown}
    specs = [spec for found in answers.values() for spec in found.values()]
    types = [spec.type for spec in specs if spec.type is not None]
    made, schemas = msgspec.json.schema_components([*types, *more], ref_template=REF)
    by_type = {id(type_): schema for type_, schema in zip(types, made, strict=False)}
    paths: dict[str, dict[str, Any]] = {}
    for one in shown:
        described = _describe(one, answers[id(one)], by_type)
        paths.setdefault(path_format(one), {})[one.method.lower()] = described
    return paths, schemas


def _answers(operation: Operation) -> dict[int, ResponseSpec]:
    returned = operation.read_signature()[2]
    usual = None if returned is type(None) else returned
    words = HTTPStatus(operation.status).description or HTTPStatus(operation.status).phrase
    return {operation.status: ResponseSpec(usual, words), **operation.responses}


def _describe(
    operation: Operation, answers: dict[int, ResponseSpec], schemas: dict[int, Any]
) -> dict[str, Any]:
    parameters = [one.describe() for one in operation.read_signature()[1]]
    return {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        **({"description": operation.description} if operation.description else {}),
        "tags": list(operation.tags),
        **({"parameters": parameters} if parameters else {}),
        "responses": {
            str(status): _describe_answer(spec, schemas) for status, spec in answers.items()
        },
    }


def _describe_answer(spec: ResponseSpec, schemas: dict[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": spec.description}
    if spec.type is not None:
        schema = schemas[id(spec.type)] if spec.media_type == JSON else {"type": "string"}
        found["content"] = {spec.media_type: {"schema": schema}}
    return found
