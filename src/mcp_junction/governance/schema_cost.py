"""Schema cost: how much work compiling and applying a JSON Schema can make. Pure.

A validator cannot be interrupted, and a chain of references that is long enough ends the process:
so a schema is weighed before it is used. Its cost is the number of subschemas that may be applied
to one place of a value: those in ``allOf`` and the like add up, and so do the targets of
references; of the properties of an object only the costliest counts, because each is another place.
A reference that leads back to where it is used is counted once: the validator remembers what it has
found there. ``unevaluatedProperties`` and ``unevaluatedItems`` have all subschemas beside them
compiled once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

MAX_COST: Final = 10_000
MAX_UNEVALUATED: Final = 10_000
MAX_CHAIN: Final = 100
"""The longest chain of subschemas and references."""
_COMPLEX_OPTION: Final = 8
"""What each option of an ``enum`` costs that is an array or an object: they are tried in turn."""
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
_UNKNOWN: Final = (1, 1)


class SchemaCost(NamedTuple):
    """What a schema can cost; each number is right up to just above its limit."""

    cost: int
    """Subschemas that may be applied to one place of a value."""
    chain: int
    """Subschemas that lead from one to the next."""
    unevaluated: int
    """Subschemas that are compiled once more."""

    @property
    def is_too_much(self) -> bool:
        """Whether the schema must not be compiled."""
        is_long = self.chain > MAX_CHAIN or self.unevaluated > MAX_UNEVALUATED
        return is_long or self.cost > MAX_COST


def measure_cost(schema: Any) -> SchemaCost:
    """Measure a schema whose nesting is limited already; chains of references may be long."""
    return _Measure(schema).run()


class _Measure:
    """Adds up the cost of the subschemas of one schema, each of which is measured once."""

    def __init__(self, root: Any) -> None:
        self._root = root
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
            is_new = key not in under_way
            under_way.add(key)
            needed = [part for part in self._parts(current) if self._is_open(part, under_way)]
            if is_new and needed:
                waiting += needed
            else:
                self._known[key] = self._add_up(current)
                under_way.discard(key)
                waiting.pop()
        return SchemaCost(self._cost(self._root), self._chain(self._root), self._unevaluated)

    def _is_open(self, part: Any, under_way: set[int]) -> bool:
        return isinstance(part, dict) and id(part) not in self._known and id(part) not in under_way

    def _cost(self, schema: Any) -> int:
        return self._known.get(id(schema), _UNKNOWN)[0]

    def _chain(self, schema: Any) -> int:
        return self._known.get(id(schema), _UNKNOWN)[1]

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        yield from self._in_place(schema)
        yield from _elsewhere(schema)

    def _add_up(self, schema: dict[str, Any]) -> tuple[int, int]:
        cost = 1 + sum(map(self._cost, self._in_place(schema)))
        cost += max(map(self._cost, _elsewhere(schema)), default=0)
        options = schema.get("enum")
        if isinstance(options, list):
            cost += _COMPLEX_OPTION * sum(isinstance(one, dict | list) for one in options)
        cost = min(cost, MAX_COST + 1)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            self._unevaluated += cost
        return cost, 1 + max(map(self._chain, self._parts(schema)), default=0)

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
    found: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name in ("$anchor", "$dynamicAnchor", "$id"):
                if isinstance(anchor := value.get(name), str):
                    found[anchor] = value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found
