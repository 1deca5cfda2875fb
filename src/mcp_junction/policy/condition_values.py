"""What a condition is given of a call: values as CEL has them, bounded before they are evaluated.

Simple values are read one by one (``read_simple``); anything else is copied, and its size added up
(``ArgumentPicker``). Conditions themselves are ``conditions.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final, Protocol

from msgspec import Raw

from mcp_junction.policy.arguments import Arguments
from mcp_junction.policy.cel_syntax import Path
from mcp_junction.policy.simple_conditions import SHORT, is_simple

MAX_READ: Final = 64 * 1024
"""Bytes of arguments that a condition may refer to."""
_MAX_VALUES: Final = 16_384
"""Members and items of what is read."""
_MAX_WORK: Final = 4_000_000
"""The most that the parts of a condition and the weight of what it reads may be, multiplied."""
WEIGHT: Final = 64
"""What one value weighs beside its bytes."""
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1

Tree = Mapping[str, "Tree | None"]
"""The members that are read; None is all of one."""


class ConditionFacts(Protocol):
    """Everything that a condition can read."""

    def read_arguments(self) -> Arguments | None: ...

    def read_field(self, root: str, name: str) -> Any: ...


class UnusableValue(Exception):
    """Something that a condition reads cannot be given to it."""


_TOO_LARGE: Final = f"the arguments that it reads are larger than {MAX_READ // 1024} KiB"
_TOO_MUCH: Final = "the arguments that it reads would take it too long"
_TOO_FAR: Final = "it reads a number that is outside of 64 bits"


MISSING: Final = object()
OTHER: Final = object()


def read_simple(facts: ConditionFacts, path: Path) -> Any:
    """Read a simple value by its path; ``MISSING`` if nothing is there, else ``OTHER``."""
    if path[0] == "args":
        arguments = facts.read_arguments()
        if arguments is None:
            return OTHER
        found, names = arguments.value, path[1:]
    else:
        found, names = facts.read_field(path[0], path[1]), path[2:]
        if found is None:
            return MISSING if not names else OTHER
    for name in names:
        if type(found) is not dict:
            return OTHER
        found = found.get(name, MISSING)
        if found is MISSING:
            return MISSING
    if type(found) is Raw and len(found) <= SHORT:
        number = float(bytes(found))
        return number if isfinite(number) else OTHER
    return found if is_simple(found) else OTHER


class ArgumentPicker:
    """Copies what is read of arguments, as CEL has it, and adds up how much that is."""

    __slots__ = ("bytes", "longest", "values")

    def __init__(self) -> None:
        self.bytes = 0
        self.values = 0
        self.longest = 1
        """Items of the longest collection."""

    def pick(self, value: Any, tree: Tree | None) -> Any:
        """Copy the members that a tree names; what is no object is copied whole."""
        if tree is None or type(value) is not dict:
            return self._copy(value)
        picked = {}
        for name, inner in tree.items():
            if name in value:
                found = value[name]
                if type(found) is str:  # as nearly always
                    self.bytes += len(found) if found.isascii() else len(found.encode())
                    self.values += 1
                    picked[name] = found
                else:
                    picked[name] = self.pick(found, inner)
        return picked

    def check(self, parts: int, is_multiplied: bool) -> int:
        """Return how much work it makes; refuse what is too much."""
        if self.bytes > MAX_READ:
            raise UnusableValue(_TOO_LARGE)
        weight = (self.bytes + self.values * WEIGHT) * parts
        if is_multiplied:
            weight *= self.longest
        if weight > _MAX_WORK:
            raise UnusableValue(_TOO_MUCH)
        return weight

    def _copy(self, value: Any) -> Any:
        self.values += 1
        if isinstance(value, str):
            self.bytes += len(value.encode())
        elif isinstance(value, Raw):
            self.bytes += len(value)
            return _read_fraction(value)
        elif isinstance(value, dict | list):
            self.longest = max(self.longest, len(value))
            if self.values + len(value) > _MAX_VALUES:
                raise UnusableValue(_TOO_MUCH)
            if isinstance(value, list):
                return [self._copy(inner) for inner in value]
            self.bytes += sum(len(name.encode()) for name in value)
            return {name: self._copy(inner) for name, inner in value.items()}
        elif isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
            raise UnusableValue(_TOO_FAR)
        return value


def _read_fraction(written: Raw) -> float:
    number = float(bytes(written))
    if number in (float("inf"), float("-inf")):
        raise UnusableValue(_TOO_FAR)
    return number


def to_tree(paths: Iterable[Path]) -> Tree | None:
    """Merge paths to a tree; a path that ends takes in all below it. No paths are all."""
    tree: dict[str, Any] = {}
    for path in sorted(paths, key=len):
        if not path:
            return None
        at = tree
        for name in path[:-1]:
            at = at.setdefault(name, {})
            if at is None:
                break
        if at is not None:
            at.setdefault(path[-1], None)
    return tree
