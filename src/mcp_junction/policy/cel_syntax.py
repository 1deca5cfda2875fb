"""Parses the conditions of grants and bounds what they can cost, before anything evaluates them.

A condition is a CEL expression. The library that evaluates it (``conditions.py``) cannot be
interrupted, so that what could take long is refused here: length, depth, comprehensions, functions.
Everything that is not known to be harmless is refused, with its place. The tree is used to find
what a condition reads and which parts it has; it is not evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from mcp_junction.errors import ConditionError

MAX_SOURCE: Final = 2048
"""Bytes of the longest condition."""
MAX_DEPTH: Final = 16
MAX_COMPREHENSIONS: Final = 1

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "agent": ("id", "type", "claims"),
    "tool": ("server", "name", "kind", "risk", "annotations"),
    "request": ("correlation_id", "ticket_id", "task_id", "endpoint", "client"),
    "args": (),
    "now": (),
}
"""What a condition may read; of ``args`` any member."""
_COMPREHENSIONS: Final = frozenset(("all", "exists", "exists_one", "map", "filter"))
_FUNCTIONS: Final = frozenset(("has", "size", "int", "double", "timestamp", "duration"))
_PARTS_OF_TIME: Final = ("FullYear", "Month", "Date", "DayOfMonth", "DayOfWeek", "DayOfYear")
_PARTS_OF_DAY: Final = ("Hours", "Minutes", "Seconds", "Milliseconds")
_METHODS: Final = {"startsWith": 1, "endsWith": 1, "contains": 1, "size": 0} | {
    f"get{part}": 0 for part in (*_PARTS_OF_TIME, *_PARTS_OF_DAY)
}
"""How many arguments each method takes."""
_RESERVED: Final = frozenset(("as", "break", "const", "continue", "else", "for", "function", "if"))
_RESERVED_TOO: Final = frozenset(("import", "in", "let", "loop", "package", "namespace", "return"))
_KEYWORDS: Final = _RESERVED | _RESERVED_TOO | {"var", "void", "while"}
_LITERALS: Final = frozenset(("true", "false", "null"))
_BINARY: Final = (
    frozenset(("<", "<=", ">", ">=", "==", "!=", "in")),
    frozenset("+-"),
    frozenset("*/%"),
)
"""Operators from the loosest to the tightest, after ``||`` and ``&&``."""
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+)(?![\w.]))"
    r"|(?P<name>[A-Za-z_]\w*+)(?![\"'])"
    r"|(?P<string>\"(?:[^\"\\\n\r\0]|\\(?:[\\\"'nrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*\""
    r"|'(?:[^'\\\n\r\0]|\\(?:[\\\"'nrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*')(?![\"'])"
    r"|(?P<sign>\|\||&&|[<>=!]=|[-+*/%<>!?:.,()\[\]{}])"
    r"|(?P<end>\Z))",
    re.ASCII,
)
_LARGEST: Final = 2**63 - 1
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


class Expression(NamedTuple):
    """A part of a condition, and where it stands in the source."""

    kind: str
    """name, literal, member, index, call, operator, or one of ``&&``, ``||``."""
    start: int
    end: int
    parts: tuple[Expression, ...] = ()
    name: str = ""
    """Of a name, a member, a call, a comprehension; the sign of an operator, a list or a map; the
    text of a constant string."""
    variable: str = ""
    """The name of each item in a comprehension."""

    def walk(self) -> Iterator[Expression]:
        """Go through this and all its parts."""
        yield self
        for part in self.parts:
            yield from part.walk()


Path = tuple[str, ...]
"""What a condition reads, from its root on: ``("args", "path")``."""


def parse_condition(source: str) -> Expression:
    """Parse a condition. Raises ConditionError for anything that is wrong, or could take long."""
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE:
        raise ConditionError(0, f"a condition has at most {MAX_SOURCE} bytes; simplify it")
    whole = _ConditionParser(source).parse()
    find_reads(whole)
    return whole


def find_reads(expression: Expression) -> set[Path]:
    """Find what an expression reads. Raises ConditionError for a field that does not exist."""
    path = read_path(expression)
    if path:
        fields = FIELDS[path[0]]
        is_field = len(path) > 1 and path[1] in fields
        if (fields and not is_field) or (path[0] == "now" and len(path) > 1):
            known = f"it has {', '.join(fields)}" if fields else "it has no members"
            raise ConditionError(expression.start, f"{'.'.join(path)} cannot be read; {known}")
        return {path}
    return set().union(*map(find_reads, expression.parts))


def read_path(expression: Expression) -> Path:
    """Return the path that an expression is, empty if it is none."""
    if expression.kind == "name" and expression.name in FIELDS:
        return (expression.name,)
    is_constant = expression.kind == "index" and expression.parts[1].kind == "literal"
    key = expression.parts[1].name if is_constant else expression.name
    if expression.kind == "member" or (is_constant and key):
        before = read_path(expression.parts[0])
        return (*before, key) if before else ()
    return ()


class _Lexeme(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class _ConditionParser:
    """A recursive descent by the grammar of CEL, as far as conditions may use it."""

    def __init__(self, source: str) -> None:
        self._tokens = list(_tokenize(source))
        self._at = 0
        self._depth = 0
        self._comprehensions = 0
        self._variable = ""

    def parse(self) -> Expression:
        whole = self._expression()
        if self._now.kind != "end":
            raise ConditionError(self._now.start, f"{self._now.text!r} is not expected here")
        if _measure_depth(whole) > MAX_DEPTH:
            self._refuse_depth(whole.start)
        return whole

    # -- from the loosest to the tightest

    def _expression(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse_depth(self._now.start)
        first = self._chain("||")
        if self._now.text == "?" and self._now.kind == "sign":
            self._next()
            then = self._chain("||")
            self._expect(":")
            otherwise = self._expression()
            parts = first, then, otherwise
            first = Expression("operator", first.start, otherwise.end, parts, "?")
        self._depth -= 1
        return first

    def _chain(self, sign: str) -> Expression:
        """Read operands of ``||`` or ``&&``: however many, they are one part."""
        operands = [self._chain("&&") if sign == "||" else self._binary(0)]
        while self._is_sign(sign):
            self._next()
            operands.append(self._chain("&&") if sign == "||" else self._binary(0))
        if len(operands) == 1:
            return operands[0]
        return Expression(sign, operands[0].start, operands[-1].end, tuple(operands))

    def _binary(self, level: int) -> Expression:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self._now.kind in ("sign", "name") and self._now.text in _BINARY[level]:
            sign = self._next().text
            right = self._binary(level + 1)
            left = Expression("operator", left.start, right.end, (left, right), sign)
        return left

    def _unary(self) -> Expression:
        start = self._now.start
        if not (self._is_sign("!") or self._is_sign("-")):
            return self._member()
        sign = self._next()
        if self._is_sign("!") or self._is_sign("-"):
            raise ConditionError(self._now.start, "two signs in a row; leave both out")
        if sign.text == "-" and self._now.kind == "number":
            number = self._next()
            _check_number(number, _LARGEST + 1)
            return Expression("literal", start, number.end)
        if sign.text == "-":  # the library has -x of the smallest whole number be that number
            raise ConditionError(start, "a sign is for numbers only; write 0 - x, or 0.0 - x")
        operand = self._member()
        return Expression("operator", start, operand.end, (operand,), sign.text)

    def _member(self) -> Expression:
        found = self._primary()
        while self._is_sign(".") or self._is_sign("["):
            if self._next().text == "[":
                key = self._expression()
                end = self._expect("]").end
                found = Expression("index", found.start, end, (found, key))
                continue
            name = self._take("name", "the name of a member")
            if name.text in _KEYWORDS:
                raise ConditionError(name.start, f"{name.text!r} is reserved; write [...]")
            if self._is_sign("("):
                found = self._method(found, name)
            else:
                found = Expression("member", found.start, name.end, (found,), name.text)
        return found

    def _primary(self) -> Expression:
        token = self._next()
        if token.kind == "number":
            _check_number(token, _LARGEST)
            return Expression("literal", token.start, token.end)
        if token.kind == "string":
            return Expression("literal", token.start, token.end, (), _read_string(token.text))
        if token.kind == "name":
            return self._name(token)
        if token.text == "(":
            inner = self._expression()
            end = self._expect(")").end
            return inner._replace(start=token.start, end=end)
        if token.text in ("[", "{"):
            return self._collection(token)
        raise ConditionError(token.start, f"{token.text or 'the end'!r} is not expected here")

    def _name(self, token: _Lexeme) -> Expression:
        name = token.text
        if name in _LITERALS:
            return Expression("literal", token.start, token.end)
        if self._is_sign("("):
            return self._function(token)
        if name in _KEYWORDS or (name not in FIELDS and name != self._variable):
            known = ", ".join(FIELDS)
            raise ConditionError(token.start, f"{name!r} is not known; there are {known}")
        return Expression("name", token.start, token.end, (), name)

    def _collection(self, opening: _Lexeme) -> Expression:
        """Read a list or a map."""
        closing = "]" if opening.text == "[" else "}"
        parts: list[Expression] = []
        while not self._is_sign(closing):
            parts.append(self._expression())
            if closing == "}":
                self._expect(":")
                parts.append(self._expression())
            if not self._is_sign(closing):
                self._expect(",")
        end = self._next().end
        return Expression("operator", opening.start, end, tuple(parts), opening.text)

    # -- calls

    def _function(self, name: _Lexeme) -> Expression:
        if name.text not in _FUNCTIONS:
            _refuse_function(name)
        self._expect("(")
        argument = self._expression()
        end = self._expect(")").end
        if name.text == "has" and argument.kind != "member":
            raise ConditionError(argument.start, "has takes a member, like has(args.path)")
        if name.text == "duration" and argument.kind != "literal":  # it cuts what is too long
            raise ConditionError(argument.start, 'duration takes a text, like duration("90s")')
        return Expression("call", name.start, end, (argument,), name.text)

    def _method(self, target: Expression, name: _Lexeme) -> Expression:
        if name.text in _COMPREHENSIONS:
            return self._comprehension(target, name)
        count = _METHODS.get(name.text)
        if count is None:
            _refuse_function(name)
        self._expect("(")
        parts = [target]
        if count:
            parts.append(self._expression())
        end = self._expect(")").end
        return Expression("call", target.start, end, tuple(parts), name.text)

    def _comprehension(self, target: Expression, name: _Lexeme) -> Expression:
        self._comprehensions += 1
        if self._comprehensions > MAX_COMPREHENSIONS:
            words = f"only one of {', '.join(sorted(_COMPREHENSIONS))} in a condition"
            raise ConditionError(name.start, words)
        self._expect("(")
        variable = self._take("name", "a name for each item")
        if variable.text in FIELDS or variable.text in _KEYWORDS | _LITERALS | _FUNCTIONS:
            raise ConditionError(variable.start, f"{variable.text!r} is taken; use another name")
        self._expect(",")
        self._variable = variable.text
        body = self._expression()
        self._variable = ""
        end = self._expect(")").end
        parts = target, body
        return Expression("comprehension", target.start, end, parts, name.text, variable.text)

    # -- tokens

    @property
    def _now(self) -> _Lexeme:
        return self._tokens[self._at]

    def _next(self) -> _Lexeme:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _is_sign(self, text: str) -> bool:
        return self._now.kind == "sign" and self._now.text == text

    def _expect(self, sign: str) -> _Lexeme:
        if not self._is_sign(sign):
            raise ConditionError(self._now.start, f"expected {sign!r}")
        return self._next()

    def _take(self, kind: str, what: str) -> _Lexeme:
        if self._now.kind != kind:
            raise ConditionError(self._now.start, f"expected {what}")
        return self._next()

    @staticmethod
    def _refuse_depth(at: int) -> None:
        raise ConditionError(at, f"a condition is nested at most {MAX_DEPTH} deep; simplify it")


def _tokenize(source: str) -> Iterator[_Lexeme]:
    at = 0
    while True:
        found = _TOKEN.match(source, at)
        if found is None:
            at += len(source[at:]) - len(source[at:].lstrip())
            raise ConditionError(at, f"{source[at : at + 10]!r} cannot be read")
        kind = found.lastgroup or "end"
        yield _Lexeme(kind, found[kind], found.start(kind), found.end(kind))
        if kind == "end":
            return
        at = found.end()


def _read_string(text: str) -> str:
    """Return what a string literal stands for."""

    def replace(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2])

    return _ESCAPED.sub(replace, text[1:-1])


def _check_number(token: _Lexeme, largest: int) -> None:
    if token.text.isdigit() and int(token.text) > largest:
        raise ConditionError(token.start, "the number is outside of 64 bits")
    if not token.text.isdigit() and float(token.text) == float("inf"):
        raise ConditionError(token.start, "the number is too large")


def _refuse_function(name: _Lexeme) -> None:
    if name.text == "matches":
        words = "matches cannot be used, because a pattern may take long"
        raise ConditionError(name.start, f"{words}; use startsWith, endsWith or contains")
    known = ", ".join(sorted(_FUNCTIONS | _METHODS.keys() | _COMPREHENSIONS))
    raise ConditionError(name.start, f"there is no function {name.text!r}; there are {known}")


def _measure_depth(expression: Expression) -> int:
    """Measure how deep a tree is, without recursion: chains of members may be long."""
    deepest, waiting = 0, [(expression, 1)]
    while waiting:
        current, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(part, depth + 1) for part in current.parts]
    return deepest
