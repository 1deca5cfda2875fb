"""Operation and Router: what is answered at which path, and by what.

``@get("/{id:str}")`` makes an Operation. A handler is an async function. Its parameters
``request``, ``context`` and ``body`` are given to it; the others are read from the request: a text,
a number, a boolean or one of some texts (``Literal``); with ``| None``, it need not be there.
``Annotated[int, QueryParameter(ge=1)]`` is one of the query. Annotations are looked at when an app
is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from mcp_junction.errors import RequestError
from mcp_junction.web.messages import JSON, Response, Stream

# -- parameters

MISSING: Final = object()
_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}
_LONGEST_NUMBER: Final = 18


class ParameterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a parameter in the path, the query or a header."""

    place: str
    """``path``, ``query`` or ``header``."""
    name: str = ""
    """Its name in the request, if that is not the one in the handler."""
    description: str = ""
    max_length: int | None = None
    ge: int | None = None
    le: int | None = None


PathParameter: Final = partial(ParameterSpec, place="path")
QueryParameter: Final = partial(ParameterSpec, place="query")
HeaderParameter: Final = partial(ParameterSpec, place="header")


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a handler."""

    key: str
    """Its name in the handler."""
    name: str
    place: str
    """``path``, ``query`` or ``header``."""
    kind: type[Any]
    choices: tuple[str, ...]
    default: Any
    spec: ParameterSpec

    @classmethod
    def make(cls, key: str, annotation: Any, default: Any) -> Parameter:
        """Make one of an annotation of a handler. Raises TypeError for one that cannot be read."""
        spec = QueryParameter()
        if get_origin(annotation) is Annotated:
            annotation, *given = get_args(annotation)
            spec = next((one for one in given if isinstance(one, ParameterSpec)), spec)
        if get_origin(annotation) in (Union, UnionType):
            (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        kind = str if choices else annotation
        if kind not in (str, int, bool):
            raise TypeError(f"a parameter {key} of type {annotation}")
        return cls(key, spec.name or key, spec.place, kind, choices, default, spec)

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def read(self, given: Mapping[str, str]) -> Any:
        """Read it from what is given in its place. Raises RequestError."""
        text = given.get(self.name.lower() if self.place == "header" else self.name)
        if text is None:
            if self.is_required:
                raise self._refuse("is missing")
            return self.default
        if self.kind is str:
            return self._check_text(text)
        return self._check_number(text) if self.kind is int else self._check_switch(text)

    def _check_text(self, text: str) -> str:
        longest = self.spec.max_length
        if longest is not None and len(text) > longest:
            raise self._refuse(f"must have at most {longest} characters")
        if self.choices and text not in self.choices:
            raise self._refuse(f"must be one of {', '.join(self.choices)}")
        return text

    def _check_number(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER):
            raise self._refuse("must be a whole number")
        number, spec = int(text), self.spec
        if spec.ge is not None and number < spec.ge:
            raise self._refuse(f"must be at least {spec.ge}")
        if spec.le is not None and number > spec.le:
            raise self._refuse(f"must be at most {spec.le}")
        return number

    def _check_switch(self, text: str) -> bool:
        found = _SWITCHES.get(text.lower())
        if found is None:
            raise self._refuse("must be true or false")
        return found

    def _refuse(self, words: str) -> RequestError:
        problem = {"path": self.name, "message": words}
        return RequestError("VALIDATION_ERROR", f"{self.name}: {words}", {"problems": [problem]})

    def describe(self) -> dict[str, Any]:
        """Describe it for OpenAPI."""
        said = {"description": self.spec.description} if self.spec.description else {}
        is_required = self.is_required or self.place == "path"
        head = {"name": self.name, "in": self.place, "required": is_required}
        return {**head, **said, "schema": self._schema()}

    def _schema(self) -> dict[str, Any]:
        spec = self.spec
        limits = {"maxLength": spec.max_length, "minimum": spec.ge, "maximum": spec.le}
        schema: dict[str, Any] = {"type": _TYPES[self.kind]}
        schema |= {name: limit for name, limit in limits.items() if limit is not None}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default not in (MISSING, None):
            schema["default"] = self.default
        return schema


# -- operations

Handler = Callable[..., Awaitable[Any]]
GIVEN: Final = ("request", "context", "body")
"""The parameters that the app gives, which are not read one by one."""
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

    @property
    def takes_body(self) -> bool:
        """Whether the handler is given the body, as the app reads it."""
        return "body" in inspect.signature(self.handler).parameters

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
