"""Parameters of handlers: where each is in a request, what it may be, and how it is read.

``Annotated[int, QueryParameter(ge=1)]`` is one of the query. A parameter may be a text, a number, a
boolean or one of some texts (``Literal``); with ``| None``, it need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from mcp_junction.errors import RequestError

MISSING: Final = object()
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}
_LONGEST_NUMBER: Final = 18


class ParameterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a parameter."""

    name: str = ""
    """Its name in the request, if that is not the one in the handler."""
    description: str = ""
    max_length: int | None = None
    ge: int | None = None
    le: int | None = None


class PathParameter(ParameterSpec, frozen=True):
    """A parameter in the path."""


class QueryParameter(ParameterSpec, frozen=True):
    """A parameter in the query."""


class HeaderParameter(ParameterSpec, frozen=True):
    """A parameter in a header."""


_PLACES: Final = {PathParameter: "path", QueryParameter: "query", HeaderParameter: "header"}


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
        spec: ParameterSpec = QueryParameter()
        if get_origin(annotation) is Annotated:
            annotation, *given = get_args(annotation)
            spec = next((one for one in given if isinstance(one, ParameterSpec)), spec)
        if get_origin(annotation) in (Union, UnionType):
            (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        kind = str if choices else annotation
        if kind not in (str, int, bool):
            raise TypeError(f"a parameter {key} of type {annotation}")
        place = _PLACES[type(spec)]
        return cls(key, spec.name or key, place, kind, choices, default, spec)

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

    # -- OpenAPI

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


_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}
