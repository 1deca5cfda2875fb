"""Risk: whether a tool is high-risk, and why. Pure.

A tool is high-risk when its name has one of a few words in it, when its annotations say that it
destroys, or when the operator says so. Only the operator's word lowers it: an annotation is the
server's own, and a server may lie.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

HIGH_RISK_WORDS: Final = ("write", "delete", "modify", "update", "create")
"""A tool with one of these in its name changes something."""


class RiskLevel(StrEnum):
    LOW = "low"
    HIGH = "high"


class Risk(msgspec.Struct, frozen=True):
    """How risky a tool is, and why."""

    level: RiskLevel
    reason: str

    @property
    def is_high(self) -> bool:
        return self.level is _HIGH


_HIGH: Final = RiskLevel.HIGH
LOW_RISK: Final = Risk(RiskLevel.LOW, "neither its name nor its annotations say that it changes")
NO_RISK: Final = Risk(RiskLevel.LOW, "prompts and resources are only read")
_SET_HIGH: Final = Risk(RiskLevel.HIGH, "the operator set it to high")
_SET_LOW: Final = Risk(RiskLevel.LOW, "the operator set it to low")
_DESTRUCTIVE: Final = Risk(RiskLevel.HIGH, "its annotations have destructiveHint: true")
_BY_WORD: Final = {
    word: Risk(RiskLevel.HIGH, f"its name contains {word!r}") for word in HIGH_RISK_WORDS
}


def assess(
    name: str, *, is_destructive: bool | None = None, operator: RiskLevel | None = None
) -> Risk:
    """Assess a tool by its own name, its ``destructiveHint`` and the operator's setting."""
    if operator is not None:
        return _SET_HIGH if operator is _HIGH else _SET_LOW
    lowered = name.lower()
    for word in HIGH_RISK_WORDS:
        if word in lowered:
            return _BY_WORD[word]
    return _DESTRUCTIVE if is_destructive is True else LOW_RISK
