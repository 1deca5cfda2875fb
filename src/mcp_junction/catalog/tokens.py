"""ListedTokens: counts the tokens that tool lists take, and those that search saves.

A token is counted as four bytes. It counts lists that were given, not what clients do with them.
"""

from __future__ import annotations

from typing import Final

BYTES: Final = 4
"""Bytes of UTF-8 that count as one token."""


class ListedTokens:
    """Totals over the tool lists sent to clients since the start."""

    __slots__ = ("_listed", "_whole")

    def __init__(self) -> None:
        self._listed = 0
        self._whole = 0

    def add(self, listed: int, whole: int) -> None:
        """Count a list: its bytes, and those that all definitions would have had."""
        self._listed += listed
        self._whole += whole

    @property
    def listed(self) -> int:
        return self._listed // BYTES

    @property
    def saved(self) -> int:
        """Tokens saved by search; negative when the three search tools take more than all tools."""
        return (self._whole - self._listed) // BYTES
