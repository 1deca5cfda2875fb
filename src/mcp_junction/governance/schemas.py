"""SchemaCache: compiles the JSON Schemas of tools, once for each definition, and checks arguments.

Registration uses the same compiler (``check_schema``). References are never fetched, formats are
not asserted, and a schema that could take long to compile or to check is not used: a server's
schema may be hostile, and a validator can neither be interrupted nor let others run meanwhile. One
that takes more than a moment is compiled in a thread, at its first use (``LargeSchema``). Whether
wrong arguments are refused, the stage says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

import jsonschema_rs
from msgspec import Raw

from mcp_junction.errors import ArgumentsError
from mcp_junction.governance.schema_cost import SchemaCost, measure_cost, weigh_patterns
from mcp_junction.policy.arguments import Arguments, read_arguments
from mcp_junction.protocol import frames

MAX_SCHEMA: Final = 64 * 1024
"""Bytes of the largest schema that is compiled; patterns may take as long again."""
INLINE_SCHEMA: Final = 8 * 1024
"""The same for those that are compiled at once."""
MAX_PARTS: Final = 250_000
"""The most keys, arrays and objects of arguments that are read to be checked."""
MAX_WORK: Final = 16_000_000
"""The most that the cost of a schema and the bytes of the arguments may be, multiplied."""
MAX_CACHED: Final = 5_000
MAX_CACHED_BYTES: Final = 64 * 1024 * 1024
MAX_ERRORS: Final = 10
_MAX_MESSAGE: Final = 300
MAX_DESCRIBED: Final = 20_000
"""The same for errors that are described: an error takes as long as thousands of checks."""
_PATTERN_BYTES: Final = 1024 * 1024
_BACKTRACKS: Final = 1_000
_TOO_MUCH: Final = (
    "is so large or refers to its parts so often, or has such patterns, that it could stall us;"
    " simplify it"
)
_MASK: Final = "it"
"""What messages have in the place of a value, which may be secret."""

_DRAFTS: Final = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
}
_LINEAR: Final = jsonschema_rs.RegexOptions(_PATTERN_BYTES, _PATTERN_BYTES)
_BACKTRACKING: Final = jsonschema_rs.FancyRegexOptions(_BACKTRACKS, _PATTERN_BYTES, _PATTERN_BYTES)
"""For patterns that look around, which the linear engine does not know."""


class SchemaProblem(NamedTuple):
    """One thing that is wrong with a schema, or with arguments by their schema, and where."""

    path: str
    """A JSON Pointer into the schema, or into the arguments."""
    message: str


class UnusableSchema(Exception):
    """A schema that cannot be used; ``problem`` says why."""

    def __init__(self, path: str, message: str) -> None:
        self.problem = SchemaProblem(path, message)
        super().__init__(message)


class CompiledSchema:
    """A schema that arguments can be checked against."""

    is_large = False
    """Whether it may only be used in a thread."""
    __slots__ = ("_cost", "_has_first", "_max_bytes", "_validator", "is_valid")

    def __init__(
        self, validator: jsonschema_rs.Validator, cost: SchemaCost, *, is_backtracking: bool = False
    ) -> None:
        self._validator = validator
        self._cost = cost
        self._max_bytes = MAX_WORK // cost.cost
        self._has_first = not (cost.is_recursive or cost.is_collecting or is_backtracking)
        """Whether the first error is found without looking for any other."""
        self.is_valid = validator.is_valid
        """Whether a decoded value fits; for values whose size was looked at."""

    def fits(self, arguments: Arguments, size: int) -> bool:
        """Whether arguments of ``size`` bytes fit. Raises ArgumentsError."""
        value = arguments.numbers if arguments.has_fractions else arguments.value
        return size <= self._max_bytes and self.is_valid(value)

    def find_problems(self, arguments: Arguments, size: int) -> list[SchemaProblem]:
        """Find what is wrong with arguments of ``size`` bytes; nothing when they fit.

        All of it where there cannot be much, else the first, else only that something is.
        """
        if size > self._max_bytes:
            words = f"more than {self._max_bytes} bytes cannot be checked against this schema"
            return [SchemaProblem("", f"{words}; send less at a time")]
        value = arguments.numbers
        if self.is_valid(value):
            return []
        if self._can_describe(value, size):
            return _describe(self._validator.iter_errors(value))
        if self._has_first:
            try:
                self._validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                return _describe((error,))
        return [SchemaProblem("", "does not fit the schema of the tool")]

    def _can_describe(self, value: Any, size: int) -> bool:
        """Whether there are few errors at most: the validator collects them all at once."""
        work = self._cost.cost * size
        if self._cost.is_recursive and work <= MAX_DESCRIBED:
            # What is applied twice to a place is applied four times to the one below it.
            work *= self._cost.cost ** _measure_depth(value)
        return work <= MAX_DESCRIBED


class LargeSchema(CompiledSchema):
    """A schema that is compiled when it is first used, which has to be in a thread."""

    is_large = True
    __slots__ = ("_compiling", "_made", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._made: CompiledSchema | None = None
        self._compiling = threading.Lock()

    def find_problems(self, arguments: Arguments, size: int) -> list[SchemaProblem]:
        """Find what is wrong with arguments; nothing when the schema cannot be used."""
        with self._compiling:
            if self._text:
                try:
                    self._made = compile_schema(self._text)
                except UnusableSchema:
                    pass  # the tool is flagged for it
                self._text = b""
        return [] if self._made is None else self._made.find_problems(arguments, size)


class SchemaCache:
    """The compiled schemas of tools, by their bytes."""

    def __init__(self, limit: int = MAX_CACHED, limit_bytes: int = MAX_CACHED_BYTES) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._compiled: dict[bytes, CompiledSchema | None] = {}

    def __len__(self) -> int:
        return len(self._compiled)

    def of(self, raw: Raw | bytes) -> CompiledSchema | None:
        """Return the compiled schema; None when it cannot be used."""
        text = frames.octets(raw)
        if text in self._compiled:
            return self._compiled[text]
        made = _begin(text)
        self._bytes += len(text)
        if len(self._compiled) >= self._limit or self._bytes > self._limit_bytes:
            self._compiled.clear()
            self._bytes = len(text)
        self._compiled[text] = made
        return made


def _begin(text: bytes) -> CompiledSchema | None:
    """Compile a small schema; others are compiled later, and none that cannot be used."""
    if len(text) > MAX_SCHEMA:
        return None
    if len(text) > INLINE_SCHEMA:
        return LargeSchema(text)
    try:
        schema = _read(text)
        is_large = weigh_patterns(schema) > INLINE_SCHEMA
        return LargeSchema(text) if is_large else _compile_read(schema, text)
    except UnusableSchema:
        return None


def count_parts(raw: bytes) -> int:
    """Count, roughly and fast, what it takes to read arguments: keys, arrays and objects."""
    return raw.count(b'":') + raw.count(b"{") + raw.count(b"[") + raw.count(b",") // 8


def check_schema(raw: Raw | bytes) -> list[SchemaProblem]:
    """Return what is wrong with the schema of a tool; nothing when it can be used."""
    try:
        compile_schema(frames.octets(raw))
    except UnusableSchema as unusable:
        return [unusable.problem]
    return []


def compile_schema(text: bytes) -> CompiledSchema:
    """Compile a schema. Raises UnusableSchema."""
    schema = _read(text)
    if weigh_patterns(schema) > MAX_SCHEMA:
        raise UnusableSchema("", _TOO_MUCH)
    return _compile_read(schema, text)


def _read(text: bytes) -> Any:
    """Decode a schema. Raises UnusableSchema."""
    if len(text) > MAX_SCHEMA:
        raise UnusableSchema("", f"is larger than {MAX_SCHEMA} bytes; make it shorter")
    try:
        schema = read_arguments(text).value  # two members of one name are read by each as he likes
        text.decode()
    except (ArgumentsError, UnicodeDecodeError) as error:
        words = str(error).removeprefix("arguments ").removeprefix("arguments: ")
        raise UnusableSchema("", f"cannot be read: {words}") from None
    if not isinstance(schema, dict | bool):
        raise UnusableSchema("", "must be an object")
    return schema


def _compile_read(schema: Any, text: bytes) -> CompiledSchema:
    cost = measure_cost(schema)
    if cost.is_too_much:
        raise UnusableSchema("", _TOO_MUCH)
    return _compile(_choose_draft(schema), text.decode(), schema, cost)


def _choose_draft(schema: Any) -> type[jsonschema_rs.Validator]:
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if named is None:
        return jsonschema_rs.Draft202012Validator
    found = _DRAFTS.get(named.rstrip("#")) if isinstance(named, str) else None
    if found is None:
        words = "is no known draft of JSON Schema; use draft 2020-12 or draft 7"
        raise UnusableSchema("/$schema", words)
    return found


def _compile(
    draft: type[jsonschema_rs.Validator], text: str, schema: Any, cost: SchemaCost
) -> CompiledSchema:
    options: dict[str, Any] = {"validate_formats": False, "mask": _MASK, "offline": True}
    try:
        return CompiledSchema(draft(text, pattern_options=_LINEAR, **options), cost)
    except ValueError:  # ValidationError is one
        pass
    cost = measure_cost(schema, is_backtracking=True)
    if cost.is_too_much:
        raise UnusableSchema("", _TOO_MUCH)
    try:
        validator = draft(text, pattern_options=_BACKTRACKING, **options)
    except jsonschema_rs.ValidationError as error:
        raise UnusableSchema(*_describe((error,))[0]) from None
    except ValueError as error:
        raise UnusableSchema("", str(error)[:_MAX_MESSAGE]) from None
    return CompiledSchema(validator, cost, is_backtracking=True)


def _measure_depth(value: Any) -> int:
    """Return how deeply arrays and objects are nested in a short value."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def _describe(errors: Iterable[jsonschema_rs.ValidationError]) -> list[SchemaProblem]:
    """Describe the first few errors, in bounded words."""
    found: list[SchemaProblem] = []
    for error in islice(errors, MAX_ERRORS):
        steps = (str(step).replace("~", "~0").replace("/", "~1") for step in error.instance_path)
        path = "".join(f"/{step}" for step in steps)
        found.append(SchemaProblem(path[:_MAX_MESSAGE], _shorten(error.message)))
    return found


def _shorten(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
