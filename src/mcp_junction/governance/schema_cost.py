"""Schema cost: how much work compiling and applying a JSON Schema can make. Pure.

A validator cannot be interrupted, and a chain of references that is long enough ends the process:
so a schema is weighed before it is used. Its cost is the number of subschemas that may be applied
to one place of a value: those in ``allOf`` and the like add up, and so do the targets of
references; of the properties of an object only the costliest counts, because each is another place.
A reference that leads back to where it is used is counted once: the validator remembers whether a
value fits there. It does not remember what was wrong, so that describing errors by such a schema
takes more: ``is_recursive`` says so. ``unevaluatedProperties`` and ``unevaluatedItems`` have all
subschemas beside them compiled once more. A few keywords take much longer than others: patterns
that backtrack or repeat what is repeated, and multiples of fractions.

An engine without backtracking takes time in proportion to the text and to the states of a pattern;
but where a counted repetition is repeated by count again, as in ``(a{0,300}){0,20}``, it also has
to go through many states for each character. To compile a pattern takes time in proportion to its
states: whatever is counted is compiled that often, and a class of Unicode has hundreds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from msgspec import Raw

MAX_COST: Final = 10_000
MAX_UNEVALUATED: Final = 10_000
MAX_CHAIN: Final = 100
"""The longest chain of subschemas and references."""
_OPTION: Final = 8
"""What each option of an ``enum`` costs that are tried in turn: all, unless all are plain values of
one type."""
_FRACTION_OPTION: Final = 100
"""What it costs beside that if it is a fraction."""
_BACKTRACKING: Final = 2_000
"""What a pattern costs that may be tried by backtracking."""
_FRACTION: Final = 400
"""What a multiple of a fraction costs, and of a fraction with many digits."""
_LONG_FRACTION: Final = 4_000
_SHORT: Final = 1e-9
_COLLECTING: Final = ("anyOf", "oneOf")
"""Keywords whose error holds all errors of the subschemas below."""
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else", "contains", "propertyNames")
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies", "patternProperties")
_ELSEWHERE: Final = (
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "prefixItems",
    "properties",
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_WITH_PARTS: Final = frozenset(
    {*_IN_PLACE_LISTS, *_IN_PLACE, *_IN_PLACE_MAPS, *_ELSEWHERE, *_REFERENCES}
)
"""All keywords that lead to other subschemas; most subschemas have none of them."""
_UNKNOWN: Final = (1, 1)
_PIECES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(?:,(\d*))?\}|[()]", re.DOTALL)
"""What matters: escapes and classes, to be passed over; counts; and groups."""
_MOST: Final = 10**9
_TOKENS: Final = re.compile(
    r"\\[pP](?:\{[^}]*\})?|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(?:,(\d*))?\}|.", re.DOTALL
)
_PATTERN: Final = 150
_WIDE: Final = 25
"""What a class costs that holds characters beyond ASCII, as the dot does."""
_PROPERTY: Final = 700
"""What a class of Unicode characters costs, such as all letters."""
_FOLDED: Final = 9_000
"""What a class costs besides where upper and lower case count as the same."""
_WORST: Final = 24_000
"""What a pattern costs at most but for that: the engine gives up at a size."""
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_CLASSES: Final = re.compile(r"\\[pPwWdDsS]|\[")


class SchemaCost(NamedTuple):
    """What a schema can cost; each number is right up to just above its limit."""

    cost: int
    """Subschemas that may be applied to one place of a value."""
    chain: int
    """Subschemas that lead from one to the next."""
    unevaluated: int
    """Subschemas that are compiled once more."""
    is_recursive: bool = False
    """Whether a reference leads back to where it is used."""
    is_collecting: bool = False
    """Whether one error may hold many others."""

    @property
    def is_too_much(self) -> bool:
        """Whether the schema must not be compiled."""
        return self.cost > MAX_COST or self.chain > MAX_CHAIN or self.unevaluated > MAX_UNEVALUATED


def measure_cost(schema: Any, *, is_backtracking: bool = False) -> SchemaCost:
    """Measure a schema whose nesting is limited already; chains of references may be long.

    ``is_backtracking`` says that its patterns cannot all be tried in linear time.
    """
    return _Measure(schema, is_backtracking).run()


class _Measure:
    """Adds up the cost of the subschemas of one schema, each of which is measured once."""

    def __init__(self, root: Any, is_backtracking: bool) -> None:
        self._root = root
        self._is_backtracking = is_backtracking
        self._is_recursive = False
        self._is_collecting = False
        self._known: dict[int, tuple[int, int]] = {}
        """The cost and the longest chain of each subschema, by its ``id()``."""
        self._unevaluated = 0
        self._anchors: dict[str, Any] | None = None

    def run(self) -> SchemaCost:
        """Measure each subschema after its parts; no recursion, because chains may be long."""
        waiting, under_way = [self._root], set[int]()
        while waiting:
            current = waiting[-1]
            key = id(current)
            if key in self._known or not isinstance(current, dict):
                waiting.pop()
                continue
            if current.keys().isdisjoint(_WITH_PARTS):
                self._known[key] = min(self._own_cost(current), MAX_COST + 1), 1
                waiting.pop()
                continue
            is_new = key not in under_way
            under_way.add(key)
            needed = [part for part in self._parts(current) if self._is_open(part, under_way)]
            if is_new and needed:
                waiting += needed
            else:
                self._known[key] = self._add_up(current)
                under_way.discard(key)
                waiting.pop()
        return SchemaCost(
            self._cost(self._root),
            self._chain(self._root),
            self._unevaluated,
            self._is_recursive,
            self._is_collecting,
        )

    def _is_open(self, part: Any, under_way: set[int]) -> bool:
        if not isinstance(part, dict) or id(part) in self._known:
            return False
        self._is_recursive = self._is_recursive or id(part) in under_way
        return id(part) not in under_way

    def _cost(self, schema: Any) -> int:
        return self._known.get(id(schema), _UNKNOWN)[0]

    def _chain(self, schema: Any) -> int:
        return self._known.get(id(schema), _UNKNOWN)[1]

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        yield from self._in_place(schema)
        yield from _elsewhere(schema)

    def _add_up(self, schema: dict[str, Any]) -> tuple[int, int]:
        cost = self._own_cost(schema) + sum(map(self._cost, self._in_place(schema)))
        cost = min(cost + max(map(self._cost, _elsewhere(schema)), default=0), MAX_COST + 1)
        self._is_collecting = self._is_collecting or any(name in schema for name in _COLLECTING)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            self._unevaluated += cost
        return cost, 1 + max(map(self._chain, self._parts(schema)), default=0)

    def _own_cost(self, schema: dict[str, Any]) -> int:
        """Return what a subschema costs without those that it leads to."""
        patterns = _patterns_of(schema)
        cost = 1 + _cost_of_values(schema) + sum(map(count_nested_repeats, patterns))
        return cost + (_BACKTRACKING * len(patterns) if self._is_backtracking else 0)

    def _in_place(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Yield the subschemas that are applied to the same place, or to each place below it."""
        for name in _IN_PLACE_LISTS:
            if isinstance(found := schema.get(name), list):
                yield from found
        for name in _IN_PLACE_MAPS:
            if isinstance(found := schema.get(name), dict):
                yield from found.values()
        for name in _IN_PLACE:
            if name in schema:
                yield schema[name]
        for name in _REFERENCES:
            if isinstance(target := schema.get(name), str):
                yield self._find(target)

    def _find(self, reference: str) -> Any:
        """Find what a reference leads to in the schema itself; None when it is not here."""
        base, _, fragment = reference.partition("#")
        if fragment.startswith("/") and not base:
            return _follow(self._root, unquote(fragment))
        if not fragment and not base:
            return self._root
        if self._anchors is None:
            self._anchors = _collect_anchors(self._root)
        return self._anchors.get(reference.removeprefix("#"))


def _cost_of_values(schema: dict[str, Any]) -> int:
    """Return what the keywords cost that name values; each may be an error of its own."""
    options = schema.get("enum")
    cost = _cost_of_options(options) if isinstance(options, list) else 0
    if isinstance(required := schema.get("required"), list):
        cost += len(required)
    for name in ("dependentRequired", "dependencies"):
        if isinstance(needs := schema.get(name), dict):
            cost += sum(len(one) for one in needs.values() if isinstance(one, list))
    divisor = schema.get("multipleOf")
    if isinstance(divisor, float | Raw):  # a Raw is a number as it is written
        number = divisor if isinstance(divisor, float) else float(bytes(divisor))
        cost += _FRACTION if number >= _SHORT else _LONG_FRACTION
    return cost


def _cost_of_options(options: list[Any]) -> int:
    fractions = sum(isinstance(one, float | Raw) for one in options)
    complex_ones = sum(isinstance(one, dict | list) for one in options)
    are_tried = fractions or complex_ones or len(set(map(type, options))) > 1
    return (_OPTION * len(options) if are_tried else 0) + _FRACTION_OPTION * fractions


def _elsewhere(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the subschemas that are applied to places below, each to another one."""
    for name in _ELSEWHERE:
        found = schema.get(name)
        if isinstance(found, list):
            yield from found
        elif name == "properties" and isinstance(found, dict):
            yield from found.values()
        elif found is not None:
            yield found


def _follow(value: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step[:9]) < len(value):
            value = value[int(step[:9])]
        else:
            return None
    return value


def _collect_anchors(root: Any) -> dict[str, Any]:
    """Find the subschemas that have a name of their own."""
    return {
        anchor: found
        for found in _walk(root)
        for name in ("$anchor", "$dynamicAnchor", "$id")
        if isinstance(anchor := found.get(name), str)
    }


def _walk(root: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a schema, used as subschemas or not."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def weigh_patterns(root: Any) -> int:
    """Return what all patterns in a schema cost to compile, used or not: the validator reads all.

    Counted in bytes of a plain schema that take as long.
    """
    return sum(weigh_pattern(one) for found in _walk(root) for one in _patterns_of(found))


def _patterns_of(schema: dict[str, Any]) -> list[str]:
    named = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(named if isinstance(named, dict) else ())]
    return [one for one in patterns if isinstance(one, str)]


def count_nested_repeats(pattern: str) -> int:
    """Return the largest product of counts that apply to each other; 0 where none do."""
    groups = [1]
    """For each open group, the largest product of counts within."""
    closed, ended_at, worst = 1, -1, 0
    for piece in _PIECES.finditer(pattern):
        text = piece.group()
        if text == "(":
            groups.append(1)
        elif text == ")":
            closed, ended_at = groups.pop() if len(groups) > 1 else 1, piece.end()
            groups[-1] = max(groups[-1], closed)
        elif text[0] == "{":
            count = _read_count(piece.group(1), piece.group(2))
            within = closed if piece.start() == ended_at else 1
            product = min(count * within, _MOST)
            groups[-1] = max(groups[-1], product)
            if within > 1 and count > 1:
                worst = max(worst, product)
            closed, ended_at = product, piece.end()  # it may be counted again
    return worst


def _read_count(least: str | None, most: str | None) -> int:
    """Return how often at most, or at least where there is no limit."""
    return min(int((most or least or "1")[:10]), _MOST)


def weigh_pattern(pattern: str) -> int:
    """Return how many bytes of a plain schema take as long to compile as this pattern does."""
    groups, last = [0], 0
    for piece in _TOKENS.finditer(pattern):
        text = piece.group()
        if text == "(":
            groups.append(0)
        elif text == ")":
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif text[0] == "{" and len(text) > 1:
            more = min(last * max(_read_count(piece.group(1), piece.group(2)) - 1, 0), _MOST)
            groups[-1] += more
            last += more
        elif text not in "*+?":  # what these repeat is compiled once
            last = _weigh_token(text)
            groups[-1] += last
    folded = len(_CLASSES.findall(pattern)) if _IGNORES_CASE.search(pattern) else 0
    return _PATTERN + min(sum(groups), _WORST) + _FOLDED * folded


def _weigh_token(text: str) -> int:
    properties = text.count("\\p") + text.count("\\P")
    if properties:
        return properties * _PROPERTY
    if text[0] == "[":
        is_wide = text[1] == "^" or not text.isascii() or "\\" in text
        return len(text) + _WIDE if is_wide else 2 + len(text) // 8
    return _WIDE if text == "." or (text[0] == "\\" and text[-1] in "WDSwds") else 1
