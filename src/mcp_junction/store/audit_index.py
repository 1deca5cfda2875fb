"""AuditIndex: the tables of the index over audit pages: segments and their terms; pages as rows.

It is made of the pages and can be made again; what is not in it yet is searched for in the pages
themselves. ``audit_terms.py`` says what is in it, ``audit_search.py`` searches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mcp_junction.store.audit_records import AuditPage
from mcp_junction.store.audit_terms import (
    PageSpot,
    Segment,
    read_spots,
    read_term_list,
)
from mcp_junction.store.database import (
    Batch,
    Query,
    Row,
    Rows,
    Script,
    bump,
    insert,
    placeholders,
)
from mcp_junction.store.table import UNREADABLE, StoreTable, Table, transaction

PAGES: Final = Table("audit_pages", AuditPage)
_TOPIC: Final = "audit_segments"
_SEGMENT: Final = insert(
    "audit_segments",
    (
        "id", "writer", "first_seq", "last_seq", "first_at", "last_at", "pages", "terms",
        "correlations",
    ),
)  # fmt: skip
_TERM: Final = insert("audit_terms", ("term", "last_at", "segment", "first_at", "pages"))
_FORGET: Final = "DELETE FROM audit_terms WHERE term = ? AND last_at = ? AND segment = ?"
_AT_ONCE: Final = 20
"""Segments that are read or removed at a time."""


def read_pages(rows: Rows) -> list[AuditPage]:
    """Decode the pages that can be read; verification reports the others as missing."""
    found = []
    for row in rows:
        try:
            found.append(_page(row))
        except (TypeError, ValueError) as error:
            UNREADABLE.note(PAGES.name, row, error)
    return found


def _page(row: Row) -> AuditPage:
    writer, first_seq, last_seq, first_at, last_at, mac, tags, body = row
    place = str(writer), int(first_seq), int(last_seq), float(first_at), float(last_at)
    return AuditPage(*place, bytes(mac), bytes(tags), bytes(body))


def add_segment(segment: Segment) -> Script[None]:
    """Store a segment, as part of another script."""
    ((number,),) = yield bump(_TOPIC)
    yield Query(
        _SEGMENT,
        (
            number,
            segment.writer,
            segment.first_seq,
            segment.last_seq,
            segment.first_at,
            segment.last_at,
            segment.pages,
            segment.term_list,
            segment.correlations,
        ),
    )
    at = segment.last_at, number, segment.first_at
    yield Batch(_TERM, [(term, *at, pages) for term, pages in sorted(segment.terms.items())])


class StoredSegment(NamedTuple):
    """A segment as it is stored."""

    id: int
    writer: str
    first_seq: int
    last_seq: int
    last_at: float
    spots: list[PageSpot]
    terms: list[int]
    correlations: bytes


class AuditIndex(StoreTable):
    """The index over all pages of the audit."""

    @transaction()
    def add(self, segment: Segment) -> Script[None]:
        """Store a segment, unless its pages are in another one."""
        found = yield Query(
            "SELECT 1 FROM audit_segments WHERE writer = ? AND last_seq >= ? LIMIT 1",
            (segment.writer, segment.first_seq),
        )
        if not found:
            yield from add_segment(segment)

    async def tails(self) -> dict[str, int]:
        """Return the chains with pages beyond the index, and the last row of each that is in it."""
        through = (
            "COALESCE((SELECT max(last_seq) FROM audit_segments s WHERE s.writer = w.writer), 0)"
        )
        found = await self._read_rows(
            lambda row: (str(row[0]), int(row[1])),
            f"SELECT writer, {through} FROM audit_writers w WHERE EXISTS (SELECT 1 FROM"
            f" audit_pages p WHERE p.writer = w.writer AND p.last_seq > {through})",
        )
        return dict(found)

    async def segments(self, writer: str, after: int = 0) -> list[StoredSegment]:
        """Read some segments of a chain after one that ends with row ``after``, oldest first."""
        return await self._read_rows(
            _segment,
            "SELECT id, writer, first_seq, last_seq, last_at, pages, terms, correlations"
            " FROM audit_segments WHERE writer = ? AND last_seq > ? ORDER BY last_seq LIMIT ?",
            writer,
            after,
            _AT_ONCE,
        )

    async def terms(self, segment: StoredSegment) -> dict[int, bytes]:
        """Read the terms of a segment: which of its pages have each."""
        found: dict[int, bytes] = {}
        for begin in range(0, len(segment.terms), 500):
            some = segment.terms[begin : begin + 500]
            found |= await self._read_rows(
                lambda row: (int(row[0]), bytes(row[1])),
                f"SELECT term, pages FROM audit_terms WHERE term IN ({placeholders(some)})"
                " AND last_at = ? AND segment = ?",
                *some,
                segment.last_at,
                segment.id,
            )
        return found

    async def counts(self) -> tuple[int, int]:
        """Return how many terms the segments name, and how many rows of terms there are."""
        query = Query(
            "SELECT (SELECT sum(length(terms) / 8) FROM audit_segments),"
            " (SELECT count(*) FROM audit_terms)"
        )
        first, second = await self._database.read(query, lambda rows: rows[0])
        return int(first or 0), int(second)

    async def writers(self) -> list[str]:
        """Return the writers that have segments."""
        sql = "SELECT DISTINCT writer FROM audit_segments ORDER BY writer"
        return await self._read_rows(lambda row: str(row[0]), sql)

    async def drop(self, writer: str, through: int) -> None:
        """Remove the segments of a chain that end at a row or before it, a few at a time."""
        while await self._drop_some(writer, through):
            pass

    @transaction(durable=False)
    def _drop_some(self, writer: str, through: int) -> Script[bool]:
        rows = yield Query(
            "SELECT id, last_at, last_seq, terms FROM audit_segments WHERE writer = ?"
            " AND last_seq <= ? ORDER BY last_seq LIMIT ?",
            (writer, through, _AT_ONCE),
        )
        for number, last_at, last_seq, terms in rows:
            listed = read_term_list(bytes(terms))
            yield Batch(_FORGET, [(term, last_at, number) for term in listed])
            key = writer, last_seq
            yield Query("DELETE FROM audit_segments WHERE writer = ? AND last_seq = ?", key)
        return len(rows) == _AT_ONCE

    @transaction(durable=False)
    def drop_all(self) -> Script[None]:
        """Remove the whole index."""
        yield Query("DELETE FROM audit_terms")
        yield Query("DELETE FROM audit_segments")


def _segment(row: Row) -> StoredSegment:
    number, writer, first_seq, last_seq, last_at, pages, terms, correlations = row
    return StoredSegment(
        int(number),
        writer,
        int(first_seq),
        int(last_seq),
        last_at,
        read_spots(writer, bytes(pages)),
        read_term_list(bytes(terms)),
        bytes(correlations),
    )
