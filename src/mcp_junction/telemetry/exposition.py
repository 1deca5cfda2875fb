"""Formats metric families as the text that Prometheus reads, version 0.0.4. Pure.

It holds no counters and measures nothing, and bounds no label: whoever makes a family does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final

import msgspec

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class MetricFamily(msgspec.Struct, frozen=True):
    """A metric, with its samples by the value of its label; ``""`` where there is no label.

    Name and label are not escaped; values of the label are.
    """

    name: str
    help: str
    samples: Mapping[str, float]
    label: str = ""
    kind: MetricKind = MetricKind.GAUGE

    def lines(self) -> Iterator[str]:
        """Format the samples."""
        for value, number in self.samples.items():
            labels = {self.label: value} if self.label else {}
            yield _line(self.name, labels, number)


class LabelledFamily(msgspec.Struct, frozen=True):
    """A metric with several labels, and its samples by their values in order."""

    name: str
    help: str
    labels: Sequence[str]
    samples: Mapping[tuple[str, ...], float]
    kind: MetricKind = MetricKind.COUNTER

    def lines(self) -> Iterator[str]:
        """Format the samples."""
        for values, number in self.samples.items():
            yield _line(self.name, dict(zip(self.labels, values, strict=True)), number)


class HistogramSample(msgspec.Struct, frozen=True):
    """What was observed: how often, up to each bound and in all, and the sum."""

    counts: Sequence[int]
    """Observations not above each bound, and at last all."""
    total: float


class HistogramFamily(msgspec.Struct, frozen=True):
    """A histogram by the values of its labels."""

    name: str
    help: str
    labels: Sequence[str]
    bounds: Sequence[float]
    samples: Mapping[tuple[str, ...], HistogramSample]

    kind: ClassVar[MetricKind] = MetricKind.HISTOGRAM

    def lines(self) -> Iterator[str]:
        """Format the samples."""
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        for values, sample in self.samples.items():
            labels = dict(zip(self.labels, values, strict=True))
            for bound, count in zip(bounds, sample.counts, strict=True):
                yield _line(f"{self.name}_bucket", {**labels, "le": bound}, count)
            yield _line(f"{self.name}_sum", labels, sample.total)
            yield _line(f"{self.name}_count", labels, sample.counts[-1])


AnyFamily = MetricFamily | LabelledFamily | HistogramFamily


def format_families(families: Iterable[AnyFamily]) -> bytes:
    """Format these families."""
    parts: list[str] = []
    for family in families:
        name = family.name
        parts.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
        parts += family.lines()
    return "".join(parts).encode()


def _line(name: str, labels: Mapping[str, str], number: float) -> str:
    inside = ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())
    return f"{name}{{{inside}}} {number!r}\n" if inside else f"{name} {number!r}\n"


def _escape(value: str) -> str:
    """Escape a label value: backslash, newline, quote and lone surrogates."""
    whole = value.encode("utf-8", "backslashreplace").decode()
    return whole.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
