"""Variables in config strings: ``$VAR``, ``${VAR}``, ``${VAR:-default}``, ``${env:VAR}``, ``$$``.

One pass: what a variable holds is never expanded again. Missing variables are collected, not
raised, so that a report can name all of them at once.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping

log = logging.getLogger("mcp_junction.config")

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^}]*)\}|(?P<plain>[A-Z_][A-Z0-9_]*))")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*?)\s*\Z")
_QUOTED = re.compile(r"""(["'])(.*?)\1(?:\s+#.*)?""")


def expand(
    text: str, variables: Mapping[str, str], used: dict[str, str] | None = None
) -> tuple[str, list[str]]:
    """The expanded text, and the names of the variables that are not set.

    ``used`` is told which variables were set, and to what.
    """
    missing: list[str] = []

    def value(reference: re.Match[str]) -> str:
        if reference["dollar"]:
            return "$"
        name, default = _parse_reference(reference)
        found = variables.get(name)
        if default is not None:
            found = found or default
        if found is None:
            missing.append(name)
            return reference[0]
        if used is not None:
            used[name] = found
        return found

    return _REFERENCE.sub(value, text), missing


def references(text: str) -> list[str]:
    """The names of the variables that a text refers to."""
    found = (one for one in _REFERENCE.finditer(text) if one[0] != "$$")
    return [_parse_reference(reference)[0] for reference in found]


def without_references(text: str, names: Collection[str] | None = None) -> str:
    """Remove references to variables, or only those to ``names``; their defaults stay."""

    def rest(reference: re.Match[str]) -> str:
        name, default = _parse_reference(reference)
        if reference[0] == "$$" or (names is not None and name not in names):
            return reference[0]
        return default or ""

    return _REFERENCE.sub(rest, text)


def not_set(name: str) -> str:
    """What is wrong with a reference that ``expand`` found missing."""
    if not name:
        return "${} names no environment variable; a dollar sign itself is written $$"
    if name.startswith("input:"):
        return f"${{{name}}} is asked from a person by VS Code; write ${{VAR}} and set VAR instead"
    return f"the environment variable {name} is not set"


def _parse_reference(reference: re.Match[str]) -> tuple[str, str | None]:
    """The variable that a reference names, and its default if it has one."""
    inside = reference["braced"] or reference["plain"] or ""
    name, has_default, default = inside.partition(":-")
    return name.removeprefix("env:"), default if has_default else None


def read_dotenv(path: str | os.PathLike[str]) -> dict[str, str]:
    """The assignments of a ``.env`` file; an absent file has none."""
    try:
        # What is not UTF-8 is kept as the environment itself keeps it.
        with open(path, "rb") as file:
            lines = file.read().decode("utf-8-sig", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except OSError as error:
        log.warning("%s is left out: %s", path, error.strerror)
        return {}
    found: dict[str, str] = {}
    for line in lines:
        assignment = _ASSIGNMENT.match(line)
        if assignment and not line.lstrip().startswith("#"):
            found[assignment["name"]] = _unquoted(assignment["value"])
    return found


def _unquoted(value: str) -> str:
    """A value without its quotes, and without the comment behind it."""
    quoted = _QUOTED.fullmatch(value)
    return quoted[2] if quoted else re.split(r"\s+#", value, maxsplit=1)[0]
