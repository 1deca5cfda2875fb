"""Pinning: decides whether a tool is quarantined.

A quarantined tool is neither listed nor called. Of the three modes, ``off`` and ``warn`` quarantine
nothing by themselves; under ``strict`` a tool is quarantined when its definition is not the pinned
one, and when something about it is suspect that nobody has approved. It is released by approval, or
when it returns to its pinned definition. A *blocked* tool stays quarantined until it is approved.

The registry applies the rule to a list before anybody sees it, and the store applies it to the same
list in the transaction that writes it. What a definition's hash covers: ``catalog/pins.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

STRICT: Final = "strict"


class PinnedState(NamedTuple):
    """The pin of a tool, as stored before its server's new list."""

    pinned: str
    """The hash of the pinned definition."""
    hash: str
    """The hash of the definition that was listed last."""
    quarantined: bool = False
    approved: bool = False
    """Whether a person has approved the pinned definition."""
    blocked: bool = False


def is_quarantined(
    known: PinnedState | None, current: str, *, strict: bool, suspect: bool = False
) -> bool:
    """Whether a tool with the definition hash ``current`` is quarantined; a new one has no pin."""
    if known is None:
        return strict and suspect
    if known.blocked:
        return True
    if current != known.pinned:
        return strict or known.quarantined
    if current != known.hash:  # it returns to its pinned definition
        return strict and suspect and not known.approved
    return known.quarantined


def is_quarantined_by_flags(
    flags: Collection[str], known: Collection[str], *, strict: bool
) -> bool:
    """Whether flags that are not among the ``known`` ones quarantine a tool."""
    return strict and not set(flags) <= set(known)
