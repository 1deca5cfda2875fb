"""Operation and Router: what is answered at which path, and what OpenAPI says of it.

``@get("/{id:str}")`` makes an Operation. A handler is an async function. Its parameters ``request``
and ``context`` are given to it; the others are read from the request (``parameters.py``).
Annotations are looked at when an app is made.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from mcp_junction.web.messages import JSON, Response, Stream
from mcp_junction.web.parameters import MISSING, Parameter

Handler = Callable[..., Awaitable[Any]]
GIVEN: Final = ("request", "context")
"""The parameters that are not read from the request."""
_USUAL: Final = {"POST": 201, "DELETE": 204}


class ResponseSpec(msgspec.Struct, frozen=True):
    """What is said of an answer: its type and media type, and when it comes."""

    type: Any
    description: str = ""
    media_type: str = JSON


class Operation(msgspec.Struct, frozen=True, eq=False):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    opt: Mapping[str, Any]
    status: int
    responses: Mapping[int, ResponseSpec]
    summary: str
    description: str
    tags: tuple[str, ...] = ()
    include_in_schema: bool = True

    def under(self, path: str, tags: Sequence[str]) -> Operation:
        """The same under another path."""
        whole = f"{path}{self.path}".rstrip("/")
        return msgspec.structs.replace(self, path=whole, tags=(*tags, *self.tags))

    def read_signature(self) -> tuple[list[str], list[Parameter], Any]:
        """Return which given parameters the handler takes, its others, and the type it returns."""
        hints = get_type_hints(self.handler, include_extras=True)
        given, others = [], []
        for key, one in inspect.signature(self.handler).parameters.items():
            if key in GIVEN:
                given.append(key)
            else:
                default = MISSING if one.default is one.empty else one.default
                others.append(Parameter.make(key, hints[key], default))
        return given, others, _unwrap(hints.get("return"))


class Router(msgspec.Struct, frozen=True, eq=False):
    """Operations, or other routers, under a path."""

    path: str
    route_handlers: Sequence[Operation | Router]
    tags: Sequence[str] = ()

    def operations(self) -> list[Operation]:
        """All operations, with their whole paths."""
        found = flatten(self.route_handlers)
        return [one.under(self.path.rstrip("/"), self.tags) for one in found]


def flatten(routes: Sequence[Operation | Router]) -> list[Operation]:
    """Return the operations of routers among others."""
    return [
        operation
        for one in routes
        for operation in (one.operations() if isinstance(one, Router) else [one])
    ]


def _make_decorator(method: str) -> Callable[..., Callable[[Handler], Operation]]:
    def declare(
        path: str = "",
        *,
        opt: Mapping[str, Any] | None = None,
        status_code: int | None = None,
        responses: Mapping[int, ResponseSpec] | None = None,
        summary: str = "",
        description: str = "",
        include_in_schema: bool = True,
    ) -> Callable[[Handler], Operation]:
        status = status_code or _USUAL.get(method, 200)

        def make(handler: Handler) -> Operation:
            return Operation(
                method,
                path.rstrip("/"),
                handler,
                opt or {},
                status,
                responses or {},
                summary,
                description,
                include_in_schema=include_in_schema,
            )

        return make

    return declare


get, post, put, patch, delete = map(_make_decorator, ("GET", "POST", "PUT", "PATCH", "DELETE"))


def _unwrap(returned: Any) -> Any:
    """Return the type of what an answer holds."""
    if get_origin(returned) is Response:
        (returned,) = get_args(returned)
    return bytes if returned is Stream else returned


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
