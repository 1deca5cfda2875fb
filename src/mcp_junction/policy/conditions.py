"""GrantCondition: what a grant asks of a call beyond its target, compiled from CEL.

A condition is given only what it refers to. It is met when it is true; false, any error, numbers
that CEL does not have and arguments that are too large all deny. Evaluating cannot be interrupted:
its work is bounded by the source (``cel_syntax.py``) and, for each call, by what is read. The
library is loaded by the first condition. In which child process a condition is tried before it is
compiled here, ``governance/condition_compiler.py`` says.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.errors import ConditionError
from mcp_junction.policy.arguments import Arguments
from mcp_junction.policy.cel_syntax import Expression, Path, find_reads, parse_condition
from mcp_junction.policy.simple_conditions import compile_simple, flatten_reads, is_simple

MAX_READ: Final = 64 * 1024
"""Bytes of arguments that a condition may refer to."""
_MAX_VALUES: Final = 16_384
"""Members and items of what is read."""
_MAX_WORK: Final = 4_000_000
"""The most that the parts of a condition and the weight of what it reads may be, multiplied."""
_LIGHT: Final = 20_000
"""The most that it may be where a condition may be evaluated twice."""
_WEIGHT: Final = 64
"""What one value weighs beside its bytes."""
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1
_LISTED: Final = frozenset(
    (("agent", "id"), ("agent", "type"), ("tool", "server"), ("tool", "name"), ("tool", "kind"))
)
"""What is known where something is listed."""

Tree = Mapping[str, "Tree | None"]
"""The members that are read; None is all of one."""


class CallReader(Protocol):
    """What the policy can read of a call, where a condition asks for it."""

    def read_arguments(self) -> Arguments | None:
        """Return its arguments; None if it has none to be judged. Raises ArgumentsError."""
        ...

    def read_field(self, name: str) -> str | None:
        """Return a field of ``request``; None if the call has no such thing."""
        ...

    def read_claims(self) -> Mapping[str, Any]:
        """Return what the credential of its agent claims."""
        ...


class ConditionFacts(Protocol):
    """Everything that a condition can read."""

    def read_arguments(self) -> Arguments | None: ...

    def read_field(self, root: str, name: str) -> Any: ...


class PartValue(NamedTuple):
    """What a part of a condition came to."""

    text: str
    value: str
    """``true``, ``false``, or why there is none."""


class _Unusable(Exception):
    """Something that a condition reads cannot be given to it."""


_NO_ARGUMENTS: Final = "it reads arguments, and this has none of a call"
_TOO_LARGE: Final = f"the arguments that it reads are larger than {MAX_READ // 1024} KiB"
_TOO_MUCH: Final = "the arguments that it reads would take it too long"
_TOO_FAR: Final = "it reads a number that is outside of 64 bits"
_FALSE: Final = "it is false"
_ERRORS: Final = {
    "KeyError": "something that it reads is not there",
    "IndexError": "something that it reads is not there",
    "TypeError": "something that it reads has another type",
    "OverflowError": "a number is too large",
    "ZeroDivisionError": "it divides by 0",
}


class GrantCondition:
    """A condition that can be evaluated."""

    __slots__ = (
        "_args",
        "_execute",
        "_execute_flat",
        "_fields",
        "_has_now",
        "_meets",
        "_multiplies",
        "_possible",
        "_size",
        "_variables",
        "is_static",
        "reads_args",
        "source",
        "tree",
    )

    def __init__(self, source: str) -> None:
        """Raises ConditionError."""
        self.source = source
        self.tree = tree = parse_condition(source)
        reads = find_reads(tree)
        self.reads_args = any(path[0] == "args" for path in reads)
        self.is_static = all(path[:2] in _LISTED or path[0] == "tool" for path in reads)
        """Whether it depends on agent and tool alone, so that its value can be remembered."""
        self._args = _to_tree(path[1:] for path in reads if path[0] == "args")
        fields = sorted({path[:2] for path in reads if len(path) > 1 and path[0] != "args"})
        self._fields = [
            (root, name, _to_tree(path[2:] for path in reads if path[:2] == (root, name)))
            for root, name in fields
        ]
        self._has_now = ("now",) in reads
        self._meets = compile_simple(tree, source)
        """Says of simple arguments that they meet it, so that the library need not be asked."""
        self._size = sum(1 for _ in tree.walk())
        self._multiplies = any(
            find_reads(one.parts[1]) for one in tree.walk() if one.kind == "comprehension"
        )
        self._possible = _find_listed(tree, source)
        self._execute = compile_source(source, 0).execute
        flat = flatten_reads(tree, source)
        self._variables = () if flat is None else tuple(flat[1].items())
        """The variable of each path that it reads, where it is given these: that is faster."""
        self._execute_flat = None if flat is None else compile_source(flat[0], 0).execute

    def find_failure(self, facts: ConditionFacts, now: float) -> str | None:
        """Say why it does not let a call pass; None when it does. Raises ArgumentsError."""
        if self._meets is not None:
            arguments = facts.read_arguments()
            if (
                arguments is not None
                and type(arguments.value) is dict
                and self._meets(arguments.value)
            ):
                return None
        if self._variables:
            value = self._judge_simple(facts, now)
            if value is not None:
                return None if value else _FALSE
        try:
            given, weight = self._gather(facts, now)
        except _Unusable as error:
            return str(error)
        if weight <= _LIGHT:  # anything else is evaluated once only
            value = self._judge_flat(self._flatten(given))
            if value is not None:
                return None if value else _FALSE
        try:
            return None if self._execute(given) is True else _FALSE
        except BaseException as error:  # noqa: BLE001 - the library panics by one of its own
            return _explain_error(error)

    def _judge_simple(self, facts: ConditionFacts, now: float) -> bool | None:
        """Evaluate it over simple values as they are; None where it reads any other."""
        given, weight = dict[str, Any](), 0
        for path, variable in self._variables:
            found = _read_simple(facts, path)
            if found is _MISSING:
                continue
            if found is _OTHER:
                return None
            weight += _WEIGHT if type(found) is not str else _WEIGHT + 4 * len(found)
            given[variable] = found
        if weight * self._size > _LIGHT:
            return None
        if self._has_now:
            given["now"] = datetime.fromtimestamp(now, UTC)
        return self._judge_flat(given)

    def _judge_flat(self, given: dict[str, Any] | None) -> bool | None:
        """Evaluate it over variables; None where that says nothing: then the source does."""
        if given is None or self._execute_flat is None:
            return None
        try:
            value = self._execute_flat(given)
        except BaseException as error:  # noqa: BLE001 - the library panics by one of its own
            _explain_error(error)
            return None
        return value if type(value) is bool else None

    def _flatten(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """Turn what was collected into variables; None where a path leads through no object."""
        flat = {"now": given["now"]} if self._has_now else {}
        for path, variable in self._variables:
            found: Any = given
            for name in path:
                if type(found) is not dict:
                    return None
                found = found.get(name, _MISSING)
                if found is _MISSING:
                    break
            else:
                flat[variable] = found
        return flat

    def is_possible(self, known: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether a call may pass, as far as that is known where things are listed."""
        return _is_possible(self._possible, known)

    def explain(self, facts: ConditionFacts, now: float) -> list[PartValue]:
        """Evaluate each operand of its ``&&`` and ``||``. Raises ArgumentsError."""
        try:
            given, _ = self._gather(facts, now)
        except _Unusable as error:
            return [PartValue(self.source, str(error))]
        found = []
        for part in _operands(self.tree):
            text = self.source[part.start : part.end]
            try:
                value = compile_source(text, part.start).execute(given)
                shown = str(value).lower() if isinstance(value, bool) else "neither true nor false"
            except BaseException as error:  # noqa: BLE001 - as above
                shown = _explain_error(error)
            found.append(PartValue(text, shown))
        return found

    def _gather(self, facts: ConditionFacts, now: float) -> tuple[dict[str, Any], int]:
        """Collect what it refers to, and nothing else; return it with the work that it makes."""
        given: dict[str, Any] = {}
        measure = _ArgumentPicker()
        if self.reads_args:
            arguments = facts.read_arguments()
            if arguments is None:
                raise _Unusable(_NO_ARGUMENTS)
            given["args"] = measure.pick(arguments.value, self._args)
        for root, name, tree in self._fields:
            value = facts.read_field(root, name)
            fields = given.setdefault(root, {})
            if value is not None:  # callers, issuers and servers write it, as arguments
                fields[name] = measure.pick(value, tree)
        if self._has_now:
            given["now"] = datetime.fromtimestamp(now, UTC)
        return given, measure.check(self._size, self._multiplies)


_MISSING: Final = object()
_OTHER: Final = object()


def _read_simple(facts: ConditionFacts, path: Path) -> Any:
    """Read a simple value by its path; ``_MISSING`` if nothing is there, else ``_OTHER``."""
    if path[0] == "args":
        arguments = facts.read_arguments()
        if arguments is None:
            return _OTHER
        found, names = arguments.value, path[1:]
    else:
        found, names = facts.read_field(path[0], path[1]), path[2:]
        if found is None:
            return _MISSING if not names else _OTHER
    for name in names:
        if type(found) is not dict:
            return _OTHER
        found = found.get(name, _MISSING)
        if found is _MISSING:
            return _MISSING
    return found if is_simple(found) else _OTHER


class _ArgumentPicker:
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
            raise _Unusable(_TOO_LARGE)
        weight = (self.bytes + self.values * _WEIGHT) * parts
        if is_multiplied:
            weight *= self.longest
        if weight > _MAX_WORK:
            raise _Unusable(_TOO_MUCH)
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
                raise _Unusable(_TOO_MUCH)
            if isinstance(value, list):
                return [self._copy(inner) for inner in value]
            self.bytes += sum(len(name.encode()) for name in value)
            return {name: self._copy(inner) for name, inner in value.items()}
        elif isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
            raise _Unusable(_TOO_FAR)
        return value


def _read_fraction(written: Raw) -> float:
    number = float(bytes(written))
    if number in (float("inf"), float("-inf")):
        raise _Unusable(_TOO_FAR)
    return number


def _to_tree(paths: Iterable[Path]) -> Tree | None:
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


# -- what is known where things are listed

_Possible = tuple[str, tuple[Any, ...]] | Any
"""An operator with operands, a program, or None for what is not known then."""


def _find_listed(expression: Expression, source: str) -> _Possible:
    if expression.kind in ("&&", "||"):
        parts = tuple(_find_listed(part, source) for part in expression.parts)
        return None if all(part is None for part in parts) else (expression.kind, parts)
    reads = {path[:2] for path in find_reads(expression)}
    if not reads <= _LISTED:
        return None
    return compile_source(source[expression.start : expression.end], expression.start)


def _is_possible(part: _Possible, known: Mapping[str, Mapping[str, Any]]) -> bool:
    if part is None:
        return True
    if isinstance(part, tuple):
        sign, operands = part
        found = (_is_possible(operand, known) for operand in operands)
        return all(found) if sign == "&&" else any(found)
    try:
        return part.execute(known) is True
    except BaseException as error:  # noqa: BLE001 - the library panics by one of its own
        _explain_error(error)
        return False


def _operands(expression: Expression) -> Iterable[Expression]:
    if expression.kind not in ("&&", "||"):
        return (expression,)
    return (one for part in expression.parts for one in _operands(part))


def read_annotations(raw: Raw | None) -> dict[str, Any]:
    """Read the annotations of a tool; a server may write anything."""
    try:
        found = msgspec.json.decode(raw or b"{}")
        return _ArgumentPicker().pick(found, None) if isinstance(found, dict) else {}
    except (msgspec.MsgspecError, _Unusable):
        return {}


# -- the library


@cache
def find_library() -> importlib.machinery.ModuleSpec:
    """Find the extension module alone: its package would load a whole command line first."""
    package = importlib.util.find_spec("cel")
    places = None if package is None else package.submodule_search_locations
    spec = importlib.machinery.PathFinder.find_spec("cel", places)
    assert spec is not None, "common-expression-language is installed with this package"
    return spec


@cache
def _library() -> Any:
    spec = find_library()
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def compile_source(source: str, at: int) -> Any:
    """Compile CEL that was parsed before and stands ``at`` a place. Raises ConditionError."""
    try:
        return _library().compile(source)
    except BaseException as error:  # noqa: BLE001 - the library panics by one of its own
        raise ConditionError(at, _explain_error(error)) from None


def _explain_error(error: BaseException) -> str:
    """Say what is wrong without any value; what is not the library's is raised again."""
    if isinstance(error, KeyboardInterrupt | SystemExit | msgspec.MsgspecError | MemoryError):
        raise error
    return _ERRORS.get(type(error).__name__, "it cannot be evaluated")
