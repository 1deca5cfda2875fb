"""Operation and Router: what is answered at which path. ``@get("/{id:str}")`` makes an Operation.

A handler is an async function. Its parameters ``request`` and ``context`` are given to it; the
others are read from the request (``parameters.py``). Annotations are looked at when an app is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
        tags: Sequence[str] = (),
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
                tuple(tags),
                include_in_schema,
            )

        return make

    return declare


get, post, put, patch, delete = map(_make_decorator, ("GET", "POST", "PUT", "PATCH", "DELETE"))


def _unwrap(returned: Any) -> Any:
    """Return the type of what an answer holds."""
    if get_origin(returned) is Response:
        (returned,) = get_args(returned)
    return bytes if returned is Stream else returned
