"""AuditTrail: the tables of audit pages, their writers and open intents. ``audit/`` makes pages.

Pages are only appended, and removed from the old end of a chain. ``audit_search.py`` finds rows in
them, with the help of ``audit_index.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from mcp_junction.store.audit_index import PAGES, AuditIndex, add_segment, read_pages
from mcp_junction.store.audit_records import (
    AuditFound,
    AuditHead,
    AuditPage,
    AuditQuery,
    AuditRow,
    AuditWriter,
)
from mcp_junction.store.audit_search import AuditSearch
from mcp_junction.store.audit_terms import SealedPage, Segment
from mcp_junction.store.database import (
    Batch,
    Database,
    Dialect,
    Query,
    Row,
    Script,
    insert,
    placeholders,
)
from mcp_junction.store.table import StoreTable, Table, transaction

WRITERS = Table("audit_writers", AuditWriter)
_ADD: Final = f"{PAGES.insert} ON CONFLICT (writer, last_seq) DO NOTHING RETURNING 1"
_ADD_ALL: Final = (
    f"WITH page AS ({_ADD}),"
    " opened AS (INSERT INTO audit_open (writer, seq)"
    " SELECT * FROM unnest(?::text[], ?::bigint[]) WHERE EXISTS (SELECT 1 FROM page)),"
    " closed AS (DELETE FROM audit_open USING unnest(?::text[], ?::bigint[]) AS gone (writer, seq)"
    " WHERE audit_open.writer = gone.writer AND audit_open.seq = gone.seq"
    " AND EXISTS (SELECT 1 FROM page)) SELECT 1 FROM page"
)
"""A page and its intents in one statement, which SQLite does not know: one round trip, not five."""
_HEAD: Final = "audit_pages.writer, audit_pages.last_seq, audit_pages.mac"
_AT_ONCE: Final = 20
"""Pages that are read at a time."""


class IntentCheck:
    """What must hold in the store for an intent; asked, and done, in the transaction of its page.

    When it does not hold, what is intended must not be done; other intents of the page pass.
    """

    __slots__ = ("_make", "is_wanted", "order", "passed_by", "refusal")

    def __init__(self, make: Callable[[], Script[str | None]], order: str = "") -> None:
        """``make`` starts a script that returns why it refuses, having changed nothing then.

        Scripts that lock the same rows must have the ``order`` in which they lock them.
        """
        self._make = make
        self.order = order
        self.is_wanted: Callable[[], bool] = lambda: True
        """Whether somebody still waits for it."""
        self.refusal: str | None = None
        """Why the intent is refused, if it is; known once its page is stored."""
        self.passed_by = ""
        """What it passed by, for whoever made the script."""

    def run(self) -> Script[None]:
        if self.is_wanted():
            self.refusal = yield from self._make()


class AuditTrail(StoreTable):
    """All chains of the audit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.index = AuditIndex(database)

    # -- writing

    async def append(
        self,
        sealed: SealedPage,
        *,
        durable: bool,
        checks: Sequence[IntentCheck] = (),
        after: Callable[[], object] | None = None,
    ) -> None:
        """Store a page, and run checks of its intents.

        ``after`` is called, off the event loop, when the page is stored. The same page may be given
        again when it is not known whether the first time succeeded: if it did, so did the checks,
        and they are not run again.
        """
        script = _append(self._database.dialect, sealed, checks)
        await self._database.write(script, durable=durable, after=after)

    @transaction()
    def enter(self, writer: AuditWriter) -> Script[AuditHead | None]:
        """Register a writer; return the end of the chain that was opened last before it."""
        before = yield Query(
            f"SELECT {_HEAD} FROM audit_pages JOIN audit_writers w ON w.writer = audit_pages.writer"
            " ORDER BY w.opened_at DESC, audit_pages.last_seq DESC LIMIT 1"
        )
        yield WRITERS.add(writer)
        return _head(before[0]) if before else None

    @transaction()
    def leave(
        self, writers: Sequence[str], now: float, segment: Segment | None = None
    ) -> Script[None]:
        """Record that writers have ended; ``segment`` is the last of one of them."""
        if segment is not None:
            yield from add_segment(segment)
        for writer in sorted(writers):
            yield Query("UPDATE audit_writers SET closed_at = ? WHERE writer = ?", (now, writer))

    @transaction(durable=False)
    def seen(self, writer: str, now: float) -> Script[None]:
        """Record that a writer is alive."""
        yield Query("UPDATE audit_writers SET seen_at = ? WHERE writer = ?", (now, writer))

    @transaction()
    def retire(self, old: AuditHead) -> Script[int]:
        """Remove the old end of a chain, and return how many rows that were."""
        through = (old.writer, old.seq)
        (counted,) = yield Query(
            "SELECT sum(last_seq - first_seq + 1) FROM audit_pages"
            " WHERE writer = ? AND last_seq <= ?",
            through,
        )
        yield Query("DELETE FROM audit_pages WHERE writer = ? AND last_seq <= ?", through)
        yield Query("DELETE FROM audit_open WHERE writer = ? AND seq <= ?", through)
        yield Query(
            "DELETE FROM audit_writers WHERE writer = ? AND closed_at IS NOT NULL AND NOT EXISTS"
            " (SELECT 1 FROM audit_pages WHERE audit_pages.writer = audit_writers.writer)",
            (old.writer,),
        )
        return int(counted[0] or 0)

    # -- reading

    async def find(self, asked: AuditQuery) -> AuditFound:
        """Find rows, newest first, as far as one request may look for them."""
        return await AuditSearch(self._database, asked).run()

    async def rows(self, asked: AuditQuery) -> list[AuditRow]:
        """Find all rows that a query asks for, newest first, however long that takes."""
        return (await AuditSearch(self._database, asked, math.inf).run()).rows

    async def pages(self, writer: str, after: int = 0, limit: int = _AT_ONCE) -> list[AuditPage]:
        """Read the pages of one chain that end after a row, oldest first."""
        query = PAGES.select(
            "WHERE writer = ? AND last_seq > ? ORDER BY last_seq LIMIT ?", (writer, after, limit)
        )
        return await self._database.read(query, read_pages)

    async def writers(self) -> list[AuditWriter]:
        """Read all writers, by the time they opened."""
        return await self._read(WRITERS, "ORDER BY opened_at, writer")

    async def chains(self) -> list[str]:
        """Return the writers of all stored pages, registered or not."""
        sql = "SELECT DISTINCT writer FROM audit_pages ORDER BY writer"
        return await self._read_rows(lambda row: row[0], sql)

    async def open_intents(self, writers: Sequence[str], limit: int = 10_000) -> list[AuditRow]:
        """Read the intents of these writers that no outcome has closed."""
        if not writers:
            return []
        whose = f"IN ({placeholders(writers)})"
        query = Query(
            f"SELECT writer, seq FROM audit_open WHERE writer {whose} ORDER BY writer, seq LIMIT ?",
            (*writers, limit),
        )
        wanted = await self._database.read(query, lambda rows: {(r[0], int(r[1])) for r in rows})
        if not wanted:
            return []
        query = PAGES.select(
            f"WHERE writer {whose} AND EXISTS (SELECT 1 FROM audit_open o"
            " WHERE o.writer = audit_pages.writer AND o.seq >= audit_pages.first_seq"
            " AND o.seq <= audit_pages.last_seq) ORDER BY writer, last_seq",
            writers,
        )
        return await self._database.read(
            query,
            lambda rows: [
                row
                for page in read_pages(rows)
                for row in page.rows()
                if (row.writer, row.seq) in wanted
            ],
        )

    async def oldest_ends(self, before: float) -> list[AuditHead]:
        """Find, in each chain, the end of the part that is older than a time."""
        return await self._read_rows(
            _head,
            f"SELECT {_HEAD} FROM audit_pages JOIN (SELECT writer, max(last_seq) AS seq"
            " FROM audit_pages WHERE last_at < ? GROUP BY writer) old"
            " ON old.writer = audit_pages.writer AND old.seq = audit_pages.last_seq"
            " ORDER BY audit_pages.writer",
            before,
        )


def _append(dialect: Dialect, sealed: SealedPage, checks: Sequence[IntentCheck]) -> Script[None]:
    add = _add_at_once if dialect is Dialect.POSTGRES else _add
    if not (yield from add(sealed, not (sealed.segment or checks))):
        return
    for check in sorted(checks, key=lambda check: check.order):
        yield from check.run()
    if sealed.segment is not None:
        yield from add_segment(sealed.segment)


def _add(sealed: SealedPage, is_all: bool) -> Script[bool]:
    """Add a page and its intents, unless it is there; ``is_all``: nothing else is written."""
    page, opens, closes = sealed.page, sealed.opens, sealed.closes
    is_all = is_all and not (opens or closes)
    if not (yield Query(_ADD, PAGES.values(page), only=is_all)):
        return False
    if opens:
        yield Batch(insert("audit_open", ("writer", "seq")), [(page.writer, seq) for seq in opens])
    if closes:
        yield Batch("DELETE FROM audit_open WHERE writer = ? AND seq = ?", closes)
    return True


def _add_at_once(sealed: SealedPage, is_all: bool) -> Script[bool]:
    page, opens, closes = sealed.page, sealed.opens, sealed.closes
    if not (opens or closes):
        return bool((yield Query(_ADD, PAGES.values(page), only=is_all)))
    opened = [page.writer] * len(opens), list(opens)
    closed = [writer for writer, _ in closes], [seq for _, seq in closes]
    values = (*PAGES.values(page), *opened, *closed)
    return bool((yield Query(_ADD_ALL, values, only=is_all)))


def _head(row: Row) -> AuditHead:
    return AuditHead(row[0], int(row[1]), bytes(row[2]))
