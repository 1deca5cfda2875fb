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
_KINDS: dict[str, tuple[str, type | tuple[type, ...], str, str]] = {
    "string": ("text", str, "minLength", "maxLength"),
    "number": ("a number", (int, float), "minimum", "maximum"),
    "integer": ("a whole number", int, "minimum", "maximum"),
    "array": ("a list", list, "minItems", "maxItems"),
}
"""What a type is called, its values in Python, and the keywords that bound them or their length."""


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


def _value_problems(label: str, value: Any, schema: Json) -> list[str]:
    words, types, least, most = _KINDS[schema["type"]]
    if not isinstance(value, types) or isinstance(value, bool):
        return [f"{label} must be {words}"]
    measured, size = label, value
    if isinstance(value, list | str):
        measured, size = f"the length of {label}", len(value)
    found = []
    if least in schema and size < schema[least]:
        found.append(f"{measured} must be at least {schema[least]}")
    if most in schema and size > schema[most]:
        found.append(f"{measured} must be at most {schema[most]}")
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if len(found) >= _SHOWN:
            break
        found += _value_problems(f"{label}[{index}]", item, schema["items"])
    return found
