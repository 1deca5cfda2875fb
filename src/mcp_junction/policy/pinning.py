"""Pinning: the one rule of when a tool is quarantined. Pure.

A quarantined tool is neither listed nor called. Pins are of three kinds: ``off`` and ``warn`` keep
nothing back by themselves; under ``strict`` a tool is quarantined when its definition is not the
pinned one, and when something about it is suspect that nobody has approved. It is let out by an
approval, or by returning to its pinned form. A *blocked* tool stays in until it is approved.

The registry applies the rule to a list before anybody sees it, and the store applies it to the same
list in the transaction that writes it. What a definition's hash covers is ``catalog/pins.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

STRICT: Final = "strict"


class PinnedState(NamedTuple):
    """What is known of a tool before its server's new list is looked at."""

    pinned: str
    """The hash of the definition that is pinned."""
    hash: str
    """The hash of the definition that was offered last."""
    quarantined: bool = False
    approved: bool = False
    """Whether a person has approved the pinned definition."""
    blocked: bool = False


def is_quarantined(
    known: PinnedState | None, current: str, *, strict: bool, suspect: bool = False
) -> bool:
    """Decide about a tool whose definition now has the hash ``current``; None is a new tool."""
    if known is None:
        return strict and suspect
    if known.blocked:
        return True
    if current != known.pinned:
        return strict or known.quarantined
    if current != known.hash:  # it returns to its pinned form
        return strict and suspect and not known.approved
    return known.quarantined


def is_quarantined_by_flags(
    flags: Collection[str], known: Collection[str], *, strict: bool
) -> bool:
    """Whether a tool is quarantined for flags that are not among the ``known`` ones."""
    return strict and not set(flags) <= set(known)
