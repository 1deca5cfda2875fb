"""Judges the simplest conditions at once, where the CEL library would take ten times as long.

Most conditions are a few tests of single arguments, joined by ``&&``: the beginning of a text, a
value among others, a number below another. Such a test is made into a plain function that says
whether an argument surely meets it. It never says why not: whatever it does not pass, of another
type or too long, the library judges. So it can only be faster, never more lenient: tests compare
its answers with a slow evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import ge, gt, le, lt
from typing import Any, Final

from mcp_junction.policy.cel_syntax import Expression, Path, read_path

SHORT: Final = 256
"""Characters of a text, and items of a list, that are judged at once."""
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1
_MISSING: Final = object()
_MAX_TESTS: Final = 8

Check = Callable[[Any], bool]
"""Whether a value surely meets a test."""
MeetsAll = Callable[[Mapping[str, Any]], bool]

_OF_TEXT: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}
_ORDERS: Final[Mapping[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def compile_simple(tree: Expression, source: str) -> MeetsAll | None:
    """Make a function over arguments of a condition; None if it is not simple enough."""
    found = _compile(tree, source)
    return None if found is None or len(found[1]) > _MAX_TESTS else found[0]


def _compile(tree: Expression, source: str) -> tuple[MeetsAll, list[str]] | None:
    """Compile a tree; return with it the names of the arguments that it tests."""
    if tree.kind not in ("&&", "||"):
        test = _SimpleReader(source, _name_argument).read(tree)
        if test is None:
            return None
        name, check = test
        return (lambda values: check(values.get(name, _MISSING))), [name]
    parts = [_compile(part, source) for part in tree.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    tests, names = [meets for meets, _ in known], [one for _, names in known for one in names]
    if tree.kind == "&&":
        return (lambda values: all(meets(values) for meets in tests)), names

    def meets_any(values: Mapping[str, Any]) -> bool:
        # What the library cannot be given denies, in a part that does not matter, too.
        return any(meets(values) for meets in tests) and all(
            name not in values or is_simple(values[name]) for name in names
        )

    return meets_any, names


def flatten_reads(tree: Expression, source: str) -> tuple[str, dict[Path, str]] | None:
    """Write a condition over single variables, which are given faster than objects.

    Return it with the variable of each path that it reads; None where it reads objects otherwise.
    """
    reads, waiting, prefix = list[tuple[int, int, Path]](), [tree], "v"
    while prefix in source:
        prefix += "_"
    while waiting:
        part = waiting.pop()
        path = read_path(part)
        if len(path) > 1:
            reads.append((part.start, part.end, path))
        elif path == ("args",) or (part.kind, part.name) == ("call", "has"):
            return None
        else:
            waiting += part.parts
    variables: dict[Path, str] = {}
    written, at = "", 0
    for start, end, path in sorted(reads):
        variable = variables.setdefault(path, f"{prefix}{len(variables)}")
        written, at = f"{written}{source[at:start]}{variable}", end
    return (written + source[at:], variables) if variables else None


def is_simple(found: Any) -> bool:
    """Whether a value is a short text, a whole number of 64 bits, true or false."""
    if type(found) is str:
        return len(found) <= SHORT
    if type(found) is int:
        return _SMALLEST <= found <= _LARGEST
    return found is True or found is False


class _SimpleReader:
    """Reads one test of one thing, which is found by ``name_of``."""

    def __init__(self, source: str, name_of: Callable[[Expression], str | None]) -> None:
        self._source = source
        self._name_of = name_of

    def read(self, part: Expression) -> tuple[str, Check] | None:
        """Return what is tested and how; None for what is not simple."""
        if part.kind == "call":
            return self._read_call(part, True)
        if part.kind == "operator" and part.name == "!":
            return self._read_negated(part.parts[0])
        if part.kind == "operator" and len(part.parts) == 2:
            return self._read_comparison(part)
        if part.kind == "comprehension" and part.parts[0].kind in ("member", "index"):
            return self._read_all(part)
        return None

    def _read_negated(self, part: Expression) -> tuple[str, Check] | None:
        if part.kind == "call":
            return self._read_call(part, False)
        if part.kind != "operator" or part.name != "in":
            return None
        name = self._name_of(part.parts[0])
        check = None if name is None else self._test_value("not in", part.parts[1])
        return None if name is None or check is None else (name, check)

    def _read_call(self, part: Expression, wanted: bool) -> tuple[str, Check] | None:
        name = self._name_of(part.parts[0])
        if name is None:
            return None
        if part.name == "has":
            return (name, is_simple) if wanted else None
        ask = _OF_TEXT.get(part.name)
        text = self._read_constant(part.parts[1]) if len(part.parts) == 2 else None
        if ask is None or type(text) is not str or not text:
            return None
        return name, _test_text(ask, text, wanted)

    def _read_comparison(self, part: Expression) -> tuple[str, Check] | None:
        left, right = part.parts
        if left.kind == "call" and left.name == "size" and len(left.parts) == 1:
            size, name = self._read_constant(right), self._name_of(left.parts[0])
            compare = _ORDERS.get(part.name)
            if name is None or compare is None or type(size) is not int:
                return None
            return name, _test_size(compare, size)
        name = self._name_of(left)
        check = None if name is None else self._test_value(part.name, right)
        return None if name is None or check is None else (name, check)

    def _test_value(self, sign: str, right: Expression) -> Check | None:
        if sign in ("in", "not in"):
            if right.kind != "operator" or right.name != "[":
                return None
            found = [self._read_constant(one) for one in right.parts]
            return _test_among(found, sign == "in")
        value = self._read_constant(right)
        if sign in ("==", "!="):
            return None if value is None else _test_among([value], sign == "==")
        if type(value) is int and sign in _ORDERS:
            return _test_order(_ORDERS[sign], value)
        return None

    def _read_all(self, part: Expression) -> tuple[str, Check] | None:
        """Read ``args.names.all(x, …)`` with one test of each item."""
        name, variable = self._name_of(part.parts[0]), part.variable
        if name is None or part.name != "all":
            return None

        def name_item(inner: Expression) -> str | None:
            is_item = inner.kind == "name" and inner.name == variable
            return "" if is_item else None

        found = _SimpleReader(self._source, name_item).read(part.parts[1])
        return None if found is None else (name, _test_each(found[1]))

    def _read_constant(self, part: Expression) -> Any:
        """Return a text, a whole number, true or false; None for anything else."""
        if part.kind != "literal":
            return None
        written = self._source[part.start : part.end].strip("() \t\r\n")
        if written[:1] in ("'", '"'):
            return part.name
        if written in ("true", "false"):
            return written == "true"
        return int(written) if written.removeprefix("-").isdigit() else None


def _name_argument(part: Expression) -> str | None:
    """Return the name of the argument that an expression is: ``args.path``, ``args["path"]``."""
    path = read_path(part)
    return path[1] if len(path) == 2 and path[0] == "args" else None


# -- tests


def _test_text(ask: Callable[[str, str], bool], text: str, wanted: bool) -> Check:
    return lambda found: type(found) is str and len(found) <= SHORT and ask(found, text) is wanted


def _test_among(values: Iterable[Any], wanted: bool) -> Check | None:
    """Test that a value is one of some, which all have its type; or that it is none of them."""
    among = list(values)
    kinds = {type(one) for one in among}
    if len(kinds) != 1 or not kinds <= {str, int, bool}:
        return None
    (kind,) = kinds
    known = frozenset(among)
    if wanted:
        return lambda found: type(found) is kind and found in known
    return lambda found: type(found) is kind and is_simple(found) and found not in known


def _test_order(compare: Callable[[int, int], bool], limit: int) -> Check:
    return lambda found: (
        type(found) is int and _SMALLEST <= found <= _LARGEST and compare(found, limit)
    )


def _test_size(compare: Callable[[int, int], bool], limit: int) -> Check:
    def check(found: Any) -> bool:
        if type(found) is list:
            is_usable = len(found) <= SHORT and all(map(is_simple, found))
        else:  # the library counts bytes
            is_usable = type(found) is str and len(found) <= SHORT and found.isascii()
        return is_usable and compare(len(found), limit)

    return check


def _test_each(check: Check) -> Check:
    return lambda found: type(found) is list and len(found) <= SHORT and all(map(check, found))
