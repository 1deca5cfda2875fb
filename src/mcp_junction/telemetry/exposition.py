"""Exposition: metric families as the text that Prometheus reads, version 0.0.4. Pure.

It writes what it is given, at the moment of a scrape; it holds no counters and measures nothing. A
family has one label at most, and that is as much as may be told apart here.
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


class Family(msgspec.Struct, frozen=True):
    """A metric, and its values by those of its label; without one, the one value is under ``""``.

    The name and the label are ours and are taken as they are. Values of the label may be anything.
    """

    name: str
    help: str
    samples: Mapping[str, float]
    label: str = ""
    kind: MetricKind = MetricKind.GAUGE


def exposition(families: Iterable[Family]) -> bytes:
    """The text for these families."""
    lines: list[str] = []
    for family in families:
        name, label = family.name, family.label
        lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
        for value, number in family.samples.items():
            labels = f'{{{label}="{_escaped(value)}"}}' if label else ""
            lines.append(f"{name}{labels} {number!r}\n")
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    """A value of a label: all of Unicode may stand there but these three, and halves of pairs."""
    whole = value.encode("utf-8", "backslashreplace").decode()
    return whole.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
