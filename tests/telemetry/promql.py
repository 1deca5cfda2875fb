"""Evaluates the part of PromQL that our dashboard uses, over two scrapes of a service.

A rate is the difference of the scrapes by the seconds between them. Whatever it does not know is an
error: a query that it cannot read is not shown to work.
"""

import re

from tests.telemetry.grammar import Labels, Metrics

Vector = dict[Labels, float]
SELECTOR = re.compile(r'([a-z_]+)(?:\{([a-z_]+)="([^"]*)"\})?(\[\$__rate_interval\])?')
AGGREGATION = re.compile(r"(sum|max|min)(?: by \(([a-z_, ]+)\))? ?\(")
FUNCTION = re.compile(r"(rate|topk|histogram_quantile)\(")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Scrapes:
    """Two scrapes, and how many seconds lie between them."""

    def __init__(self, before: Metrics, after: Metrics, seconds: float) -> None:
        self._before, self._after, self._seconds = before, after, seconds

    def evaluate(self, query: str) -> Vector:
        """Return the value of a query."""
        left, rest = self._term(query.strip())
        if rest.startswith(" / "):
            right, rest = self._term(rest[3:])
            left = {labels: value / right[labels] for labels, value in left.items()}
        assert rest == "", f"cannot be read: {rest!r}"
        return left

    def _term(self, text: str) -> tuple[Vector, str]:
        if found := AGGREGATION.match(text):
            inner, rest = self._term(text[found.end() :])
            return _aggregate(found[1], (found[2] or "").replace(" ", ""), inner), _close(rest)
        if found := FUNCTION.match(text):
            return self._function(found[1], text[found.end() :])
        found = SELECTOR.match(text)
        assert found, f"cannot be read: {text!r}"
        assert found[4] is None, "a range is for rate alone"
        return self._select(self._after, found), text[found.end() :]

    def _function(self, name: str, text: str) -> tuple[Vector, str]:
        if name == "rate":
            found = SELECTOR.match(text)
            assert found, text
            assert found[4], "rate takes a range"
            before, after = self._select(self._before, found), self._select(self._after, found)
            rates = {one: (v - before.get(one, 0.0)) / self._seconds for one, v in after.items()}
            assert all(value >= 0 for value in rates.values()), "a counter never falls"
            return rates, _close(text[found.end() :])
        number = NUMBER.match(text)
        assert number, text
        inner, rest = self._term(text[number.end() :].removeprefix(", "))
        if name == "topk":
            best = sorted(inner.items(), key=lambda one: -one[1])[: int(number[0])]
            return dict(best), _close(rest)
        return _quantile(float(number[0]), inner), _close(rest)

    @staticmethod
    def _select(scrape: Metrics, found: re.Match[str]) -> Vector:
        wanted = {(found[2], found[3])} if found[2] else set()
        return {
            labels: value
            for (name, labels), value in scrape.samples.items()
            if name == found[1] and wanted <= labels
        }


def _close(text: str) -> str:
    assert text.startswith(")"), f"expected ) at {text!r}"
    return text[1:]


def _aggregate(name: str, by: str, inner: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in inner.items():
        kept = frozenset(pair for pair in labels if pair[0] in by.split(","))
        assert {pair[0] for pair in kept} == set(filter(None, by.split(","))), (
            f"no such label: {by}"
        )
        groups.setdefault(kept, []).append(value)
    apply = {"sum": sum, "max": max, "min": min}[name]
    return {labels: apply(values) for labels, values in groups.items()}


def _quantile(share: float, buckets: Vector) -> Vector:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = next(value for name, value in labels if name == "le")
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        series.setdefault(rest, []).append((float(bound.replace("+Inf", "inf")), count))
    found = {}
    for labels, some in series.items():
        some.sort()
        total = some[-1][1]
        if total > 0:
            found[labels] = next(bound for bound, count in some if count >= share * total)
    return found
