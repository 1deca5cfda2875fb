"""UnreadableRows: which rows of the store cannot be read, in this process. It mends none of them.

A row that somebody has damaged is passed over, so that the others are served. It is reported once,
by its table and id, and counted for as long as it cannot be read.
"""

from __future__ import annotations

import logging
from typing import Final

from mcp_junction.store.database import Row

log = logging.getLogger("mcp_junction.store")

_MOST: Final = 10_000
_WIDEST: Final = 64


class UnreadableRows:
    """The rows that could not be read when they were last asked for."""

    def __init__(self) -> None:
        self._rows: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all rows, as when another database is opened."""
        self._rows.clear()

    def note(self, table: str, row: Row, error: Exception) -> None:
        """Report a row, if that was not done before."""
        found = (table, row_id(row))
        if found not in self._rows and len(self._rows) < _MOST:
            self._rows.add(found)
            words = (
                "a row of the table %s cannot be read and is left out: id %s (%s);"
                " restore the store from a backup, or remove the row"
            )
            log.error(words, table, found[1], type(error).__name__)

    def forget(self, table: str, row: Row) -> None:
        """A row could be read: if it is known as unreadable, it has been mended."""
        if self._rows:
            self._rows.discard((table, row_id(row)))


def row_id(row: Row) -> str:
    """What a row is called in a report: its first column, which never holds a secret."""
    return ascii(row[0])[:_WIDEST]


UNREADABLE: Final = UnreadableRows()
