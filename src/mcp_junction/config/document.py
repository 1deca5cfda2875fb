"""Parses JSON with comments and trailing commas, and locates every fault.

It knows JSON only, nothing of servers. A key that occurs twice in one object is
reported here, because a dict has only one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mcp_junction.errors import ConfigError, Problem, ProblemCode, invalid_at

# A string, a comment, or a trailing comma. Possessive, so that no text takes exponential time.
# Python up to 3.11.4 matches a possessive group wrongly if it can backtrack inside: none here can.
_COMMENT = r"//[^\n]*+|/\*[^*]*+\*++(?:[^/*][^*]*+\*++)*+/"
_PIECES = re.compile(rf'"(?:[^"\\\n]|\\.)*+"|{_COMMENT}|,(?=(?:\s|{_COMMENT})*+[\]}}])', re.DOTALL)
_NOT_BREAK = re.compile(r"[^\n]")
_BARE_KEY = re.compile(r"[A-Za-z_$][\w$-]*\Z")


class _Object(dict[str, Any]):
    """An object that also has the earlier members whose key occurs again."""

    earlier: tuple[tuple[str, Any], ...] = ()


def parse(text: str, source: str) -> tuple[Any, list[Problem]]:
    """Parse a JSON text with comments; return its value, and a problem for each repeated key.

    Raises ConfigError with line and column for a text that is not JSON.
    """
    try:
        value = json.loads(
            _blank_comments(text), object_pairs_hook=_make_object, parse_constant=_refuse
        )
    except (RecursionError, ValueError) as error:
        words = str(error)
        if isinstance(error, json.JSONDecodeError):
            words = f"line {error.lineno}, column {error.colno}: {error.msg}"
        elif isinstance(error, RecursionError):
            words = "it is nested too deeply to be a config file"
        problem = Problem(ProblemCode.INVALID_JSON, "$", words)
        raise ConfigError(source, [problem]) from None
    repeated = [
        invalid_at(path, "this key stands twice; remove one of them")
        for path in dict.fromkeys(_find_repeated(value, "$"))
    ]
    return value, repeated


def members(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the members of an object, repeated keys included."""
    if isinstance(value, _Object):
        yield from value.earlier
    yield from value.items()


def child_path(path: str, key: str | int) -> str:
    """Make the JSON path of a member or an element."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if _BARE_KEY.match(key) else f"{path}[{json.dumps(key)}]"


def _blank_comments(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that positions stay the same."""

    def blank(piece: re.Match[str]) -> str:
        found = piece[0]
        return found if found.startswith('"') else _NOT_BREAK.sub(" ", found)

    return _PIECES.sub(blank, text.removeprefix("\ufeff"))


def _make_object(pairs: list[tuple[str, Any]]) -> _Object:
    value = _Object(pairs)
    if len(value) != len(pairs):
        last = {key: number for number, (key, _) in enumerate(pairs)}
        value.earlier = tuple(pair for number, pair in enumerate(pairs) if last[pair[0]] != number)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _find_repeated(value: Any, path: str) -> list[str]:
    found: list[str] = []
    if isinstance(value, _Object):
        found += [child_path(path, key) for key, _ in value.earlier]
        for key, member in members(value):
            found += _find_repeated(member, child_path(path, key))
    elif isinstance(value, list):
        for index, element in enumerate(value):
            found += _find_repeated(element, child_path(path, index))
    return found
