"""AuditBatch: entries that are being stored, and the futures that wait for it.

It encodes and seals them; ``log.py`` decides when, and what happens if the store fails.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from mcp_junction.audit.chain import Chain, Entry
from mcp_junction.errors import StoreUnavailable
from mcp_junction.redaction.known import KNOWN
from mcp_junction.store.records import SealedPage

_ROWS_A_TURN: Final = 32
_TURNS: Final = 16
"""A page is encoded in at most so many turns of the loop, with more rows a turn if need be."""

Waiter: TypeAlias = asyncio.Future[str]


class AuditBatch:
    """Entries that are being stored. They are sealed once, however often storing is tried."""

    __slots__ = ("_chain", "_entries", "_first", "_page", "_sealed", "durable", "waiters")

    def __init__(
        self, chain: Chain, entries: list[Entry], waiters: list[tuple[int, Waiter]]
    ) -> None:
        self._chain = chain
        self._entries = entries
        self._first = chain.seq + 1
        self._page = chain.begin(entries)
        self._sealed: SealedPage | None = None
        self.waiters = waiters
        self.durable = bool(waiters)

    def __len__(self) -> int:
        return len(self._entries)

    async def encode(self) -> None:
        """Encode the rows on the loop, a few a turn.

        A thread that does so keeps the loop from the interpreter for as long as it takes, up to the
        interpreter's switch interval of milliseconds, each time that the loop has let go of it.
        """
        if KNOWN.is_pending:  # rare, and longer than a turn may take
            await asyncio.to_thread(KNOWN.process_pending)
        rows = max(_ROWS_A_TURN, len(self._entries) // _TURNS)
        while self._page.add_rows(rows):  # noqa: ASYNC110 - others have their turn in between
            await asyncio.sleep(0)

    def seal(self) -> SealedPage:
        """Finish the page; called in a thread of the store."""
        if self._sealed is None:
            self._sealed = self._page.build()
        return self._sealed

    def settle(self) -> None:
        for index, waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(f"{self._chain.writer}:{self._first + index}")
        self.waiters = []

    def refuse(self, error: StoreUnavailable) -> None:
        refuse_each(self.waiters, error)
        self.waiters = []


def refuse_each(waiters: list[tuple[int, Waiter]], error: StoreUnavailable) -> None:
    """Tell those who wait that their entry is not on record."""
    for _, waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
