"""A slow evaluator of conditions, written for clarity, and random conditions for it to judge.

It evaluates trees that are made here, and shares nothing with the product: what is compared is what
the source of a tree means. Errors are values, as in CEL: ``&&`` and ``||`` absorb them.
"""

import json
import random
from typing import Any

ERROR = object()
NAMES = ("a", "b", "c")
TEXTS = ("", "x", "xy", "yx", "é", "/srv/", "/srv/public/a", "😀")
NUMBERS = (0, 1, -1, 2, 7, 2**53, 2**63 - 1, -(2**63))
FRACTIONS = (0.0, 1.0, 0.5, -2.5, 1e300)
Tree = tuple[Any, ...]


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return {str: "text", list: "list", dict: "map", type(None): "null"}[type(value)]


def are_equal(one: Any, other: Any) -> bool:
    kind = kind_of(one)
    if kind != kind_of(other):
        return False
    if kind == "list":
        return len(one) == len(other) and all(map(are_equal, one, other))
    if kind == "map":
        return one.keys() == other.keys() and all(are_equal(one[k], other[k]) for k in one)
    return one == other


def evaluate(tree: Tree, args: dict[str, Any], item: Any = None) -> Any:
    """Return the value of a tree, or ERROR."""
    sign, *parts = tree
    if sign in ("constant", "item"):
        return parts[0] if parts else item
    if sign == "args":
        return _follow(parts[0], args)
    if sign == "has":
        holder = evaluate(("args", parts[0][:-1]), args)
        return parts[0][-1] in holder if isinstance(holder, dict) else ERROR
    if sign in ("&&", "||"):
        return _logic(sign, [evaluate(part, args, item) for part in parts])
    if sign in ("all", "exists", "exists_one", "count"):
        return _comprehend(sign, evaluate(parts[0], args, item), parts[1], args)
    values = [evaluate(part, args, item) for part in parts]
    if sign == "?":
        condition = values[0]
        return ERROR if not isinstance(condition, bool) else values[1 if condition else 2]
    if any(value is ERROR for value in values):
        return ERROR
    return _apply(sign, values)


def _follow(path: tuple[str, ...], found: Any) -> Any:
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return ERROR
        found = found[name]
    return found


def _logic(sign: str, values: list[Any]) -> Any:
    decisive = sign == "||"
    if any(value is decisive for value in values):
        return decisive
    return not decisive if all(isinstance(value, bool) for value in values) else ERROR


def _comprehend(sign: str, many: Any, body: Tree, args: dict[str, Any]) -> Any:
    if not isinstance(many, list | dict):
        return ERROR
    if sign in ("all", "exists"):
        for one in many:  # the first item that decides, or cannot be judged, ends it
            value = evaluate(body, args, one)
            if not isinstance(value, bool):
                return ERROR
            if value is (sign == "exists"):
                return value
        return sign == "all"
    values = [evaluate(body, args, one) for one in many]
    if not all(isinstance(value, bool) for value in values):
        return ERROR
    count = sum(values)
    return count == 1 if sign == "exists_one" else count


def _apply(sign: str, values: list[Any]) -> Any:
    one, other = values[0], values[-1]
    kinds = kind_of(one), kind_of(other)
    if sign == "!":
        return not one if kinds[0] == "bool" else ERROR
    if sign in ("==", "!="):
        return are_equal(one, other) is (sign == "==")
    if sign == "in":
        return _contains(one, other)
    if sign == "size":
        return len(one.encode() if kinds[0] == "text" else one) if _has_size(one) else ERROR
    if sign == "list":
        return values
    if sign in ("startsWith", "endsWith", "contains"):
        if kinds != ("text", "text"):
            return ERROR
        calls = {"startsWith": one.startswith, "endsWith": one.endswith}
        return calls[sign](other) if sign in calls else other in one
    if sign in ("<", "<=", ">", ">="):
        return _compare(sign, one, other) if kinds[0] == kinds[1] else ERROR
    return _count(sign, one, other, kinds)


def _contains(one: Any, many: Any) -> Any:
    if isinstance(many, list):
        return any(are_equal(one, each) for each in many)
    if not isinstance(many, dict) or not isinstance(one, str | int):
        return ERROR
    return isinstance(one, str) and one in many


def _compare(sign: str, one: Any, other: Any) -> Any:
    if not isinstance(one, bool | int | float | str):
        return ERROR
    if isinstance(one, str):
        one, other = one.encode(), other.encode()
    return {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign]


def _has_size(value: Any) -> bool:
    return isinstance(value, str | list | dict)


def _count(sign: str, one: Any, other: Any, kinds: tuple[str, str]) -> Any:
    if sign == "+" and kinds in (("text", "text"), ("list", "list")):
        return one + other
    if kinds != ("number", "number") or isinstance(one, float) is not isinstance(other, float):
        return ERROR
    if isinstance(one, float):
        return {"+": one + other, "-": one - other, "*": one * other}[sign]
    found = {"+": one + other, "-": one - other, "*": one * other}[sign]
    return found if -(2**63) <= found < 2**63 else ERROR


# -- as source


def write(tree: Tree) -> str:
    """Write a tree as CEL."""
    sign, *parts = tree
    if sign in ("constant", "item"):
        return write_constant(parts[0]) if parts else "it"
    if sign in ("args", "has"):
        path = "".join(f'["{n}"]' if n == "c" and sign == "args" else f".{n}" for n in parts[0])
        return f"args{path}" if sign == "args" else f"has(args{path})"
    texts = [write(part) for part in parts]
    if sign in _FORMS:
        return _FORMS[sign].format(*texts, sign=sign)
    return f"[{', '.join(texts)}]" if sign == "list" else f"({f' {sign} '.join(texts)})"


_FORMS = {
    **dict.fromkeys(("all", "exists", "exists_one"), "{0}.{sign}(it, {1})"),
    **dict.fromkeys(("startsWith", "endsWith", "contains"), "({0}).{sign}({1})"),
    "count": "{0}.filter(it, {1}).size()",
    "?": "({0} ? {1} : {2})",
    "!": "!({0})",
    "size": "size({0})",
}


def write_constant(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e+", ".0e+") if "e" in text and "." not in text else text
    return json.dumps(value, ensure_ascii=False)


# -- at random


class Dice:
    """Makes random trees and arguments."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._has_comprehension = False

    def condition(self) -> Tree:
        """Make a tree that may be true or false."""
        self._has_comprehension = False
        return self._truth(3, False)

    def arguments(self) -> dict[str, Any]:
        return {name: self._value(2) for name in NAMES if self._random.random() < 0.8}

    def _value(self, depth: int) -> Any:
        pick = self._random
        kind = pick.randrange(8 if depth else 5)
        if kind >= 5:
            some = [self._value(depth - 1) for _ in range(pick.randrange(4))]
            return some if kind == 5 else dict(zip(NAMES, some, strict=False))
        return pick.choice(
            (pick.choice(TEXTS), pick.choice(NUMBERS), pick.choice(FRACTIONS), None, kind % 2 == 0)
        )

    def _truth(self, depth: int, has_item: bool) -> Tree:
        pick = self._random
        if depth == 0 or pick.random() < 0.2:
            return self._leaf(has_item)
        kind = pick.randrange(7)
        if kind < 3:
            count = pick.randrange(2, 4)
            sign = pick.choice(("&&", "||"))
            return (sign, *(self._truth(depth - 1, has_item) for _ in range(count)))
        if kind == 3:
            return ("!", self._truth(depth - 1, has_item))
        if kind == 4:
            return ("?", *(self._truth(depth - 1, has_item) for _ in range(3)))
        if kind == 5 and not self._has_comprehension:
            self._has_comprehension = True
            many, body = self._path(), self._truth(depth - 1, True)
            sign = pick.choice(("all", "exists", "exists_one", "count"))
            made = (sign, many, body)
            return (">", made, ("constant", 1)) if sign == "count" else made
        return self._leaf(has_item)

    def _leaf(self, has_item: bool) -> Tree:
        pick = self._random
        kind = pick.randrange(10)
        if kind == 0:
            return ("has", self._path()[1])
        if kind == 1:
            return ("args", self._path()[1])
        one, other = self._operand(has_item), self._operand(has_item)
        if kind < 5:
            return (pick.choice(("==", "!=", "<", "<=", ">", ">=")), one, other)
        if kind == 5:
            return ("in", one, pick.choice((other, ("list", other, self._operand(has_item)))))
        if kind < 8:
            return (pick.choice(("startsWith", "endsWith", "contains")), one, other)
        return (pick.choice(("<", ">=")), ("size", one), ("constant", pick.randrange(5)))

    def _operand(self, has_item: bool) -> Tree:
        pick = self._random
        kind = pick.randrange(8)
        if has_item and kind < 3:
            return ("item",)
        if kind < 4:
            return self._path()
        if kind < 7:
            return ("constant", self._value(0))
        return (pick.choice("+-*"), self._path(), ("constant", self._value(0)))

    def _path(self) -> Tree:
        count = self._random.choice((1, 1, 1, 2))
        return ("args", tuple(self._random.choice(NAMES) for _ in range(count)))
