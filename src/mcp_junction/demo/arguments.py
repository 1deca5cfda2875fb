"""Checks the arguments of a call against a tool's input schema.

It reads the handful of JSON Schema keywords the demo tools use (type, required, minimum, maximum,
minLength, maxLength, minItems, maxItems, items). It is not a JSON Schema validator.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported: `typing` would add a quarter to these programs' start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_SHOWN = 5  # problems reported at once
_KINDS = {"string": "text", "number": "a number", "integer": "a whole number", "array": "a list"}


def object_schema(properties: Json, required: tuple[str, ...] = ()) -> Json:
    """Make the schema of an object with these properties and no others."""
    schema: Json = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema | {"additionalProperties": False}


def find_problems(arguments: Json, schema: Json) -> list[str]:
    """Describe what is wrong with the arguments, one sentence each."""
    properties: Json = schema["properties"]
    found = [
        f"'{name}' is missing: {properties[name]['description']}"
        for name in schema.get("required", ())
        if name not in arguments
    ]
    known = ", ".join(f"'{name}'" for name in properties) or "none at all"
    for name, value in arguments.items():
        if name in properties:
            found += _value_problems(f"'{name}'", value, properties[name])
        else:
            found.append(f"'{name}' is not an argument of this tool; it takes {known}")
    return found[:_SHOWN]


def _value_problems(label: str, value: object, schema: Json) -> list[str]:
    kind: str = schema["type"]
    if not _has_type(kind, value):
        return [f"{label} must be {_KINDS[kind]}"]
    if isinstance(value, list):
        found = _range_problems(
            f"the length of {label}", len(value), schema, "minItems", "maxItems"
        )
        for index, item in enumerate(value):
            found += _value_problems(f"{label}[{index}]", item, schema["items"])
            if len(found) >= _SHOWN:
                break
        return found
    if isinstance(value, str):
        return _range_problems(
            f"the length of {label}", len(value), schema, "minLength", "maxLength"
        )
    return _range_problems(label, value, schema, "minimum", "maximum")


def _has_type(kind: str, value: object) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return isinstance(value, list)


def _range_problems(label: str, value: Any, schema: Json, least: str, most: str) -> list[str]:
    if least in schema and value < schema[least]:
        return [f"{label} must be at least {schema[least]}"]
    if most in schema and value > schema[most]:
        return [f"{label} must be at most {schema[most]}"]
    return []
