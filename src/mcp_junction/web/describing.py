"""Makes an OpenAPI document of operations: paths, parameters, answers, and the types in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from mcp_junction.web.messages import JSON
from mcp_junction.web.routing import Operation, ResponseSpec

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
