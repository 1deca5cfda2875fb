"""ListedTokens: how much of a model's context tool lists take, and how much search has spared.

A token is counted as four bytes. It counts lists that were given, not what clients do with them.
"""

from __future__ import annotations

from typing import Final

BYTES: Final = 4
"""Bytes of UTF-8 that count as one token."""


class ListedTokens:
    """Sums over the tool lists that were given since the start."""

    __slots__ = ("_listed", "_whole")

    def __init__(self) -> None:
        self._listed = 0
        self._whole = 0

    def add(self, listed: int, whole: int) -> None:
        """Count a list: the bytes that were given, and those of all definitions in their place."""
        self._listed += listed
        self._whole += whole

    @property
    def listed(self) -> int:
        return self._listed // BYTES

    @property
    def saved(self) -> int:
        """What was spared; less than nothing where three tools are more than there were."""
        return (self._whole - self._listed) // BYTES
