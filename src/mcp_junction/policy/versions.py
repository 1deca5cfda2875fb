"""VersionRange: which versions of a tool are compatible, exact or as ranges like ``>=1.2,<2``.

Of several ranges, written with ``||`` between them, any one will do.

Versions are compared as people mean them: number by number, 1.2 is 1.2.0, a leading ``v`` and build
metadata (``+…``) count for nothing, a pre-release comes before its release. What has no number to
begin with (``latest``) can only be equal. Versions of the protocol are not meant here.
"""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

_CLAUSE: Final = re.compile(r"(>=|<=|==|!=|>|<|=)?\s*([^\s<>=!,]{1,100})")
_VERSION: Final = re.compile(r"[vV]?(\d{1,18}(?:\.\d{1,18}){0,9})(.{0,100})", re.DOTALL)
_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_PART: Final = re.compile(r"\d{1,18}|[A-Za-z]+")
ANY: Final = "*"
MAX_RANGE: Final = 256
"""Characters of the longest range."""
MAX_RANGES: Final = 20
OR: Final = "||"
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": op.eq,
    "!=": op.ne,
    ">=": op.ge,
    "<=": op.le,
    ">": op.gt,
    "<": op.lt,
}
_FINAL: Final = (1,)
_LATER: Final = (2,)

_Part = tuple[int, int, str]


class Version(NamedTuple):
    """A version in the form that is compared."""

    release: tuple[int, ...]
    stage: tuple[int, ...]
    """Before the release, the release itself, or after it (``.post1``)."""
    parts: tuple[_Part, ...] = ()


class VersionRange(NamedTuple):
    """Clauses of which all must hold."""

    text: str
    clauses: tuple[tuple[str, str], ...]
    """Each an operator and a version; none at all for any version."""

    def has(self, version: str) -> bool:
        """Whether a version is within the range."""
        return all(_holds(operator, version, bound) for operator, bound in self.clauses)


def parse_range(text: str) -> VersionRange:
    """Read an exact version or a range. Raises ValueError, which says what to write."""
    clauses: list[tuple[str, str]] = []
    stripped = text.strip()
    if stripped == ANY:
        return VersionRange(ANY, ())
    if len(text) > MAX_RANGE:
        raise ValueError(f"a version range has at most {MAX_RANGE} characters")
    for clause in stripped.split(","):
        found = _CLAUSE.fullmatch(clause.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a version range; write 1.2.0, or >=1.2,<2, or *")
        operator, bound = found[1] or "==", found[2]
        operator = "==" if operator == "=" else operator
        if operator not in ("==", "!=") and parse_version(bound) is None:
            raise ValueError(f"{bound!r} in {text!r} has no order; write a number like 1.2 there")
        clauses.append((operator, bound))
    return VersionRange(stripped, tuple(clauses))


@lru_cache(1024)
def parse_ranges(text: str) -> tuple[VersionRange, ...]:
    """Read one range, or several with ``||`` between them. Raises ValueError."""
    parts = text.split(OR)
    if len(parts) > MAX_RANGES:
        raise ValueError(f"there are at most {MAX_RANGES} ranges with {OR} between them")
    return tuple(map(parse_range, parts))


def is_compatible(version: str | None, ranges: Iterable[VersionRange]) -> bool:
    """Whether a version is in one of the ranges.

    A tool without a version is compatible, and so is any where there are no ranges.
    """
    wanted = tuple(ranges)
    return version is None or not wanted or any(one.has(version) for one in wanted)


def parse_version(text: str) -> Version | None:
    """Read a version; None when it has no number to begin with."""
    stripped = text.strip().partition("+")[0]
    date = _DATE.fullmatch(stripped)
    if date is not None:
        return Version(_trim(int(part) for part in date.groups()), _FINAL)
    found = _VERSION.fullmatch(stripped)
    if found is None:
        return None
    release = _trim(int(part) for part in found[1].split("."))
    rest = _PART.findall(found[2])
    if not rest:
        return Version(release, _FINAL) if not found[2].strip("-._ ") else None
    stage = _LATER if rest[0].lower() == "post" else (0,)
    return Version(release, stage, tuple(_part(part) for part in rest))


def _trim(numbers: Iterable[int]) -> tuple[int, ...]:
    """Leave out the zeros at the end: 1.2 is 1.2.0."""
    found = list(numbers)
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _part(text: str) -> _Part:
    return (0, int(text), "") if text.isdigit() else (1, 0, text.lower())


def _holds(operator: str, text: str, bound_text: str) -> bool:
    version, bound = parse_version(text), parse_version(bound_text)
    if version is None or bound is None:
        is_equal = text.strip() == bound_text
        return is_equal if operator == "==" else operator == "!=" and not is_equal
    is_its_prerelease = version.release == bound.release and bound.stage == _FINAL
    return _COMPARE[operator](version, bound) and not (operator == "<" and is_its_prerelease)
