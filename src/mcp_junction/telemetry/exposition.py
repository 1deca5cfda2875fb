"""Formats metric families as the text that Prometheus reads, version 0.0.4. Pure.

It holds no counters and measures nothing. A family has one label at most, which bounds the number
of series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class MetricFamily(msgspec.Struct, frozen=True):
    """A metric, with its samples by the value of its label; ``""`` where there is no label.

    Name and label are not escaped; values of the label are.
    """

    name: str
    help: str
    samples: Mapping[str, float]
    label: str = ""
    kind: MetricKind = MetricKind.GAUGE


def format_families(families: Iterable[MetricFamily]) -> bytes:
    """Format these families."""
    lines: list[str] = []
    for family in families:
        name, label = family.name, family.label
        lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
        for value, number in family.samples.items():
            labels = f'{{{label}="{_escape(value)}"}}' if label else ""
            lines.append(f"{name}{labels} {number!r}\n")
    return "".join(lines).encode()


def _escape(value: str) -> str:
    """Escape a label value: backslash, newline, quote and lone surrogates."""
    whole = value.encode("utf-8", "backslashreplace").decode()
    return whole.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
