"""JSON with comments and trailing commas to plain values, with every fault located.

Not a validator: it knows objects and arrays, not servers. A member that stands twice in one object
is found here, because a dict could no longer tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mcp_junction.errors import ConfigError, Problem, ProblemCode

# A string, a comment, or a comma with nothing but white space and comments before the bracket. What
# is skipped is never tried again in another way: a row of slashes could be split in many. Python up
# to 3.11.4 matches a possessive group wrongly if it can backtrack inside: no part of one can, here.
_COMMENT = r"//[^\n]*+|/\*[^*]*+\*++(?:[^/*][^*]*+\*++)*+/"
_PIECES = re.compile(rf'"(?:[^"\\\n]|\\.)*+"|{_COMMENT}|,(?=(?:\s|{_COMMENT})*+[\]}}])', re.DOTALL)
_NOT_BREAK = re.compile(r"[^\n]")
_BARE_KEY = re.compile(r"[A-Za-z_$][\w$-]*\Z")


class _Object(dict[str, Any]):
    """An object that remembers what stood in it under a name that came again."""

    earlier: tuple[tuple[str, Any], ...] = ()


def parse(text: str, source: str) -> tuple[Any, list[Problem]]:
    """The value of a JSON text with comments, and the keys in it that stand twice.

    Raises ConfigError with line and column for what is no JSON.
    """
    try:
        value = json.loads(_plain(text), object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        problem = Problem(ProblemCode.INVALID_JSON, "$", f"{where}: {error.msg}")
        raise ConfigError(source, [problem]) from None
    except (RecursionError, ValueError) as error:
        too_deep = isinstance(error, RecursionError)
        words = "it is nested too deeply to be a config file" if too_deep else str(error)
        problem = Problem(ProblemCode.INVALID_JSON, "$", words)
        raise ConfigError(source, [problem]) from None
    repeated = [
        Problem(ProblemCode.INVALID_SCHEMA, path, "this key stands twice; remove one of them")
        for path in dict.fromkeys(_repeated(value, "$"))
    ]
    return value, repeated


def members(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members of an object, also those that another of the same name has replaced."""
    if isinstance(value, _Object):
        yield from value.earlier
    yield from value.items()


def child_path(path: str, key: str | int) -> str:
    """The JSON path of a member or an element."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if _BARE_KEY.match(key) else f"{path}[{json.dumps(key)}]"


def _plain(text: str) -> str:
    """The text with comments and trailing commas blanked out, every position kept."""

    def blank(piece: re.Match[str]) -> str:
        found = piece[0]
        return found if found.startswith('"') else _NOT_BREAK.sub(" ", found)

    return _PIECES.sub(blank, text.removeprefix("\ufeff"))


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    value = _Object(pairs)
    if len(value) != len(pairs):
        last = {key: number for number, (key, _) in enumerate(pairs)}
        value.earlier = tuple(pair for number, pair in enumerate(pairs) if last[pair[0]] != number)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _repeated(value: Any, path: str) -> list[str]:
    found: list[str] = []
    if isinstance(value, _Object):
        found += [child_path(path, key) for key, _ in value.earlier]
        for key, member in members(value):
            found += _repeated(member, child_path(path, key))
    elif isinstance(value, list):
        for index, element in enumerate(value):
            found += _repeated(element, child_path(path, index))
    return found
