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
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.errors import ConditionError
from mcp_junction.policy.arguments import Arguments
from mcp_junction.policy.cel_syntax import Expression, Path, find_reads, parse_condition
from mcp_junction.policy.condition_values import (
    MISSING,
    OTHER,
    WEIGHT,
    ArgumentPicker,
    ConditionFacts,
    UnusableValue,
    read_simple,
    to_tree,
)
from mcp_junction.policy.simple_conditions import compile_simple, flatten_reads, is_simple

_LIGHT: Final = 20_000
"""The most work that a condition may make over values whose size is only estimated."""
_LISTED: Final = frozenset(
    (("agent", "id"), ("agent", "type"), ("tool", "server"), ("tool", "name"), ("tool", "kind"))
)
"""What is known where something is listed."""


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


class PartValue(NamedTuple):
    """What a part of a condition came to."""

    text: str
    value: str
    """``true``, ``false``, or why there is none."""


_NO_ARGUMENTS: Final = "it reads arguments, and this has none of a call"
_MET: Final = ""
_FALSE: Final = "it is false"
_UNDEFINED: Final = re.compile("Undefined variable or function: '(\\w+)'")
"""How the library names a variable that it was not given."""
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
        "__weakref__",
        "_args",
        "_context",
        "_execute",
        "_execute_flat",
        "_fields",
        "_has_now",
        "_lock",
        "_meets",
        "_multiplies",
        "_possible",
        "_single",
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
        self._args = to_tree(path[1:] for path in reads if path[0] == "args")
        fields = sorted({path[:2] for path in reads if len(path) > 1 and path[0] != "args"})
        self._fields = [
            (root, name, to_tree(path[2:] for path in reads if path[:2] == (root, name)))
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
        self._single = tuple((path[1], v) for path, v in self._variables if _is_argument(path))
        """The name and the variable of each argument, where it reads nothing but whole ones."""
        if len(self._single) < len(self._variables) or self._has_now:
            self._single = ()
        self._context: Any = _library().Context() if self._single else None
        """Holds all variables while it is evaluated, which ``_lock`` says: a new one costs more."""
        self._lock = Lock()

    def find_failure(self, facts: ConditionFacts, now: float) -> str | None:
        """Say why it does not let a call pass; None when it does. Raises ArgumentsError.

        It is evaluated once at most.
        """
        failure = self._judge_arguments(facts)
        if failure is None and self._variables:
            failure = self._judge_simple(facts, now)
        if failure is None:
            try:
                given, _ = self._gather(facts, now)
            except UnusableValue as error:
                return str(error)
            flat = self._flatten(given)
            if flat is None or self._execute_flat is None:
                failure = self._evaluate(self._execute, given)
            else:
                failure = self._evaluate(self._execute_flat, flat)
        return failure or None

    def _judge_arguments(self, facts: ConditionFacts) -> str | None:
        """Evaluate it where it reads single arguments, as most do; None where it was not."""
        meets, single = self._meets, self._single
        if meets is None and not single:
            return None
        arguments = facts.read_arguments()
        if arguments is None or type(arguments.value) is not dict:
            return None
        if meets is not None and meets(arguments.value):
            return _MET
        if not single or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._judge_single(arguments.value)
        finally:
            self._lock.release()

    def _judge_single(self, values: dict[str, Any]) -> str | None:
        """Evaluate it in the context that is used again; None unless all values are simple.

        All variables are set each time, so that none is left from before.
        """
        weight, context = 0, self._context
        for name, variable in self._single:
            found = values.get(name)
            if not is_simple(found):
                return None
            weight += WEIGHT if type(found) is not str else WEIGHT + 4 * len(found)
            try:
                context.add_variable(variable, found)
            except BaseException as error:  # noqa: BLE001 - the library panics by one of its own
                _explain_error(error)
                return None
        if weight * self._size > _LIGHT or self._execute_flat is None:
            return None
        return self._evaluate(self._execute_flat, context)

    def _judge_simple(self, facts: ConditionFacts, now: float) -> str | None:
        """Evaluate it over simple values as they are; None where it reads any other."""
        given, weight = dict[str, Any](), 0
        for path, variable in self._variables:
            found = read_simple(facts, path)
            if found is MISSING:
                continue
            if found is OTHER:
                return None
            weight += WEIGHT if type(found) is not str else WEIGHT + 4 * len(found)
            given[variable] = found
        if weight * self._size > _LIGHT or self._execute_flat is None:
            return None
        if self._has_now:
            given["now"] = datetime.fromtimestamp(now, UTC)
        return self._evaluate(self._execute_flat, given)

    def _evaluate(self, execute: Callable[[Any], Any], given: Any) -> str:
        """Evaluate it over what it is given; return why a call does not meet it, or ``_MET``."""
        try:
            return _MET if execute(given) is True else _FALSE
        except BaseException as error:  # noqa: BLE001 - the library panics by one of its own
            unknown = _UNDEFINED.match(str(error))
            if unknown is not None and any(unknown[1] == name for _, name in self._variables):
                return _ERRORS["KeyError"]  # what the variable stands for is not there
            return _explain_error(error)

    def _flatten(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """Turn what was collected into variables; None where a path leads through no object."""
        flat = {"now": given["now"]} if self._has_now else {}
        for path, variable in self._variables:
            found: Any = given
            for name in path:
                if type(found) is not dict:
                    return None
                found = found.get(name, MISSING)
                if found is MISSING:
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
        except UnusableValue as error:
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
        measure = ArgumentPicker()
        if self.reads_args:
            arguments = facts.read_arguments()
            if arguments is None:
                raise UnusableValue(_NO_ARGUMENTS)
            given["args"] = measure.pick(arguments.value, self._args)
        for root, name, tree in self._fields:
            value = facts.read_field(root, name)
            fields = given.setdefault(root, {})
            if value is not None:  # callers, issuers and servers write it, as arguments
                fields[name] = measure.pick(value, tree)
        if self._has_now:
            given["now"] = datetime.fromtimestamp(now, UTC)
        return given, measure.check(self._size, self._multiplies)


def _is_argument(path: Path) -> bool:
    return len(path) == 2 and path[0] == "args"


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
        return ArgumentPicker().pick(found, None) if isinstance(found, dict) else {}
    except (msgspec.MsgspecError, UnusableValue):
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
