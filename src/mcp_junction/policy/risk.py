"""Risk: whether a tool is high-risk, and why. Pure.

A tool is high-risk when its name has one of a few words in it, when its annotations say that it
destroys, or once did, or when the operator says so. Only the operator lowers it, by his setting or
by approving a definition that no longer says so: an annotation is the server's own, and a server
may lie.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

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
_WAS_DESTRUCTIVE: Final = Risk(
    RiskLevel.HIGH, "its annotations had destructiveHint: true, and nobody approved the change"
)
_BY_WORD: Final = {
    word: Risk(RiskLevel.HIGH, f"its name contains {word!r}") for word in HIGH_RISK_WORDS
}


class _DestructiveHint(msgspec.Struct):
    destructiveHint: Any = None


class _AnnotatedTool(msgspec.Struct):
    annotations: Raw = Raw()


_decode_annotations = msgspec.json.Decoder(_DestructiveHint).decode
_decode_definition = msgspec.json.Decoder(_AnnotatedTool).decode


def says_destructive(annotations: Raw | None) -> bool:
    """Tell whether a tool's annotations have ``destructiveHint: true``."""
    try:
        return _decode_annotations(annotations or b"{}").destructiveHint is True
    except msgspec.MsgspecError:  # a server may write anything
        return False


def defines_destructive(definition: bytes | None) -> bool:
    """Tell whether a tool's stored definition says that it destroys."""
    try:
        return says_destructive(_decode_definition(definition or b"{}").annotations)
    except msgspec.MsgspecError:
        return False


def assess(
    name: str,
    *,
    is_destructive: bool = False,
    was_destructive: bool = False,
    operator: RiskLevel | None = None,
) -> Risk:
    """Assess a tool by its own name, its ``destructiveHint`` and the operator's setting.

    ``was_destructive``: it had the hint in a form before, and nobody has approved another since.
    """
    if operator is not None:
        return _SET_HIGH if operator is _HIGH else _SET_LOW
    lowered = name.lower()
    for word in HIGH_RISK_WORDS:
        if word in lowered:
            return _BY_WORD[word]
    if is_destructive:
        return _DESTRUCTIVE
    return _WAS_DESTRUCTIVE if was_destructive else LOW_RISK
