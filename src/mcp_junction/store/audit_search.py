"""AuditSearch: finds rows of the audit, newest first, with a bound on the work of one request.

Pages are candidates by the index, or by their time where the index does not know them yet. They
are taken in order of their youngest row, and their rows are compared with what is asked for. A
search that would take too long ends early, and says where to go on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from mcp_junction.protocol.correlation import made_at
from mcp_junction.store.audit_index import PAGES, AuditIndex, read_pages
from mcp_junction.store.audit_records import AuditFound, AuditQuery, AuditRow
from mcp_junction.store.audit_terms import (
    PROMPT,
    PageSpot,
    filter_test,
    holds_all,
    read_spots,
    select_rows,
    terms_asked_for,
    texts_asked_for,
    when,
)
from mcp_junction.store.database import Database, Dialect, Query, Row, Rows
from mcp_junction.store.table import UNREADABLE

T = TypeVar("T")

ENOUGH: Final = 300_000
"""The work of one request: rows whose bytes are searched; a row that is decoded counts for ten."""
_DECODED: Final = 10
_AT_ONCE: Final = 20
"""Pages that are read at a time."""
_FIRST_WALK: Final = 50
_WALKED: Final = 1_000
_WALKED_ROWS: Final = 50_000
"""Pages, and their rows, that are searched at a time without an index."""
_FIRST_SEGMENTS: Final = 2
_SEGMENTS: Final = 32
"""Segments that are read at a time; fewer at first, because that is often enough."""
_FASTER: Final = 4
_FILTERS: Final = 512
_LONG_TAIL: Final = 2_000
"""Pages beyond the index from which on all pages are walked, as if there were none."""
_END: Final = "\U0010ffff"
"""Sorts after every writer."""
_SPOT: Final = "last_at, writer, last_seq, first_at, last_seq - first_seq + 1"


class AuditSearch:
    """One search."""

    def __init__(self, database: Database, asked: AuditQuery, enough: float = ENOUGH) -> None:
        self.database = database
        self._asked = asked
        self._enough = enough
        self._work = 0
        self._found: list[AuditRow] = []
        self._sources: list[_PageSource] = []
        self._texts = texts_asked_for(asked)
        self._holds = holds_all(self._texts, database.dialect)

    async def run(self) -> AuditFound:
        """Search until there are enough rows, no more pages, or it was enough work."""
        asked = self._asked
        if asked.limit <= 0:
            return AuditFound([], None)
        bound = math.inf if asked.before is None else asked.before[0]
        self._sources = await self._choose_sources()
        while True:
            top = await self._step()
            if top == -math.inf:
                rows = self._found[: asked.limit]
                return AuditFound(rows, when(rows[-1]) if len(self._found) > asked.limit else None)
            if len(self._found) >= asked.limit and self._found[asked.limit - 1].at > top:
                rows = self._found[: asked.limit]
                return AuditFound(rows, when(rows[-1]))
            if self._work >= self._enough and top < bound:
                certain = [row for row in self._found if row.at > top]
                return AuditFound(certain, (top, _END, 0))

    # -- where to look

    async def _choose_sources(self) -> list[_PageSource]:
        asked, database = self._asked, self.database
        bounds = _TimeBounds.of(asked)
        wanted = terms_asked_for(asked)
        own_time = None if asked.correlation_id is None else made_at(asked.correlation_id)
        if not wanted and asked.correlation_id is None:
            return [_PagesByTime(self, bounds)]
        tails = list((await AuditIndex(database).tails()).items())
        if tails and await self._is_long(tails):
            return [_PagesByTime(self, bounds)]
        sources: list[_PageSource] = [_PagesByTime(self, bounds, tails)] if tails else []
        if asked.correlation_id is None:
            return [*sources, _PagesByTerms(self, bounds, wanted)]
        if own_time is not None:
            sources.append(_PagesByTime(self, bounds.within(own_time - 1, own_time + PROMPT + 1)))
        test = filter_test(asked.correlation_id, database.dialect)
        return [*sources, _PagesByFilter(self, bounds, test)]

    async def _is_long(self, tails: Sequence[tuple[str, int]]) -> bool:
        chains, args = _of_chains(tails)
        query = Query(
            f"SELECT count(*) FROM (SELECT 1 FROM audit_pages WHERE {chains} LIMIT ?) t",
            (*args, _LONG_TAIL + 1),
        )
        return await self.database.read(query, lambda rows: int(rows[0][0])) > _LONG_TAIL

    # -- reading

    async def _step(self) -> float:
        """Read the youngest pages, or find more; return what no unread row is younger than."""
        sources = self._sources
        floor = max(source.floor for source in sources)
        ready = sorted({s for one in sources for s in one.spots if s.last_at > floor}, reverse=True)
        batch = ready[:_AT_ONCE]
        if batch:
            await self._read(batch)
            taken = set(batch)
            for source in sources:
                source.spots = [spot for spot in source.spots if spot not in taken]
        elif floor > -math.inf:
            for source in sources:
                if source.floor == floor:
                    self._work += await source.advance()
        known = [spot.last_at for source in sources for spot in source.spots]
        return max([source.floor for source in sources] + known)

    async def _read(self, batch: Sequence[PageSpot]) -> None:
        """Read pages that may have what is asked for, and keep their rows that do."""
        asked, texts = self._asked, self._texts
        these = " OR ".join(["(writer = ? AND last_seq = ?)"] * len(batch))
        args = [value for spot in batch for value in (spot.writer, spot.last_seq)]
        query = PAGES.select(f"WHERE {these}", args)
        found = await self.fetch(
            query,
            lambda rows: [r for page in read_pages(rows) for r in select_rows(page, asked, texts)],
        )
        self._found = sorted([*self._found, *found], key=when, reverse=True)
        self._work += _DECODED * sum(spot.rows for spot in batch)

    async def fetch(self, query: Query, make: Callable[[Rows], T]) -> T:
        """Run a query; its rows are long, so they are worked on off the event loop."""
        if self.database.dialect is Dialect.SQLITE:
            return await self.database.read(query, make)
        rows = await self.database.read(query, list)
        return await asyncio.to_thread(make, rows)

    async def walk(
        self, tests: Sequence[str], args: Sequence[Any], order: str, limit: int
    ) -> tuple[list[PageSpot], list[PageSpot]]:
        """Find the next pages by time: all of them, and those whose bytes have what is asked."""
        where = " AND ".join(tests)
        query = Query(
            f"SELECT {_SPOT} FROM audit_pages WHERE {where} ORDER BY {order} LIMIT ?",
            (*args, limit),
        )
        spots = _some_rows(await self.database.read(query, _spots))
        if not spots or not self._texts:
            return spots, spots
        return spots, await self.find_pages(f"{where} AND last_at >= ?", *args, spots[-1].last_at)

    async def find_pages(self, where: str, *args: Any) -> list[PageSpot]:
        """Find the pages that pass a test and whose bytes have what is asked for."""
        query = Query(
            f"SELECT {_SPOT} FROM audit_pages WHERE {where} AND {self._holds}",
            (*args, *self._texts),
        )
        return await self.database.read(query, _spots)


class _TimeBounds(msgspec.Struct, frozen=True):
    """The time that is asked for."""

    since: float = -math.inf
    until: float = math.inf

    @classmethod
    def of(cls, asked: AuditQuery) -> _TimeBounds:
        ends = [end for end in (asked.until, asked.before and asked.before[0]) if end is not None]
        since = -math.inf if asked.since is None else asked.since
        return cls(since, min(ends, default=math.inf))

    def within(self, since: float, until: float) -> _TimeBounds:
        return _TimeBounds(max(self.since, since), min(self.until, until))

    def tests(self, table: str = "") -> tuple[list[str], list[Any]]:
        """Make the tests of pages, segments or terms that may have rows of this time.

        ``table`` stands before the names of their columns.
        """
        tests, args = ["TRUE"], list[Any]()
        if self.since > -math.inf:
            tests.append(f"{table}last_at >= ?")
            args.append(self.since)
        if self.until < math.inf:
            tests.append(f"{table}first_at <= ?")
            args.append(self.until)
        return tests, args


class _PageSource:
    """Where candidates come from, the youngest first."""

    def __init__(self, search: AuditSearch, bounds: _TimeBounds) -> None:
        self._search = search
        self._bounds = bounds
        self.spots: list[PageSpot] = []
        """Pages that are known and not taken yet, in any order."""
        self.floor = math.inf
        """No page that comes later has a row younger than this; minus infinity at the end."""

    async def advance(self) -> int:
        """Find more pages; return the work that it was."""
        raise NotImplementedError


class _PagesByTime(_PageSource):
    """Pages by time: all, or those of some chains after a row. Searches the bytes of each."""

    def __init__(
        self, search: AuditSearch, bounds: _TimeBounds, chains: Sequence[tuple[str, int]] = ()
    ) -> None:
        super().__init__(search, bounds)
        self._chains = chains
        self._after: PageSpot | None = None
        self._limit = _FIRST_WALK

    async def advance(self) -> int:
        tests, args = self._bounds.tests()
        order = "last_at DESC, writer DESC, last_seq DESC"
        if self._chains:
            test, more = _of_chains(self._chains)
            tests.append(f"({test})")
            args += more
            order = f"+{order}"  # by the key of the chains, not along all times
        if self._after is not None:
            tests.append("last_at <= ? AND (last_at, writer, last_seq) < (?, ?, ?)")
            args += [self._after.last_at, *self._after[:3]]
        seen, found = await self._search.walk(tests, args, order, self._limit)
        self._limit = min(self._limit * _FASTER, _WALKED)
        self.spots += found
        self._after = seen[-1] if seen else self._after
        # Others of the same time may follow: they count as not younger.
        self.floor = seen[-1].last_at if seen else -math.inf
        return sum(spot.rows for spot in seen) + len(seen)


class _PagesBySegment(_PageSource):
    """Pages of segments, a few segments at a time."""

    _after: tuple[float, int] | None = None

    async def _read_segments(
        self, select: str, given: Sequence[Any], number: str, limit: int, table: str = ""
    ) -> Rows:
        """Read the next segments: their time, their number and what else is selected.

        ``number`` is the column of the latter, ``given`` are the arguments of ``select``.
        """
        tests, args = self._bounds.tests(table)
        key = f"{table}last_at", f"{table}{number}"
        if self._after is not None:
            tests.append(f"{key[0]} <= ? AND ({', '.join(key)}) < (?, ?)")
            args += [self._after[0], *self._after]
        query = Query(
            f"SELECT {', '.join(key)}, {select} {' AND '.join(tests)}"
            f" ORDER BY {' DESC, '.join(key)} DESC LIMIT ?",
            (*given, *args, limit),
        )
        rows = await self._search.database.read(query, list)
        is_end = len(rows) < limit
        self._after = None if is_end else (rows[-1][0], int(rows[-1][1]))
        self.floor = -math.inf if is_end else rows[-1][0]
        return rows


class _PagesByTerms(_PagesBySegment):
    """Pages that have all of some terms, by the index."""

    def __init__(self, search: AuditSearch, bounds: _TimeBounds, terms: Sequence[int]) -> None:
        super().__init__(search, bounds)
        self._limit = _FIRST_SEGMENTS
        self._terms = terms

    async def advance(self) -> int:
        first, *others = self._terms
        joins = "".join(
            f" JOIN audit_terms t{n} ON t{n}.term = ? AND t{n}.last_at = t.last_at"
            f" AND t{n}.segment = t.segment"
            for n in range(len(others))
        )
        pages = "".join(f", t{n}.pages" for n in range(len(others)))
        select = (
            f"s.writer, s.pages, t.pages{pages} FROM audit_terms t{joins}"
            " JOIN audit_segments s ON s.id = t.segment WHERE t.term = ? AND"
        )
        given = (*others, first)
        rows = await self._read_segments(select, given, "segment", self._limit, "t.")
        self._limit = min(self._limit * _FASTER, _SEGMENTS)
        for row in rows:
            self.spots += _spots_with_all(row, self._bounds)
        return 50 * len(rows) + 50


class _PagesByFilter(_PagesBySegment):
    """Pages with what is asked for, of segments whose filter may hold a correlation id."""

    def __init__(
        self, search: AuditSearch, bounds: _TimeBounds, test: tuple[str, list[int | bytes]]
    ) -> None:
        super().__init__(search, bounds)
        self._may_hold, self._args = test

    async def advance(self) -> int:
        select = f"writer, first_seq, last_seq, {self._may_hold} FROM audit_segments WHERE"
        rows = await self._read_segments(select, self._args, "id", _FILTERS)
        work = 20 * len(rows) + 50
        for _, _, writer, first_seq, last_seq, may_hold in rows:
            if may_hold:
                self.spots += await self._search.find_pages(
                    "writer = ? AND last_seq BETWEEN ? AND ?", writer, first_seq, last_seq
                )
                work += last_seq - first_seq
        return work


# -- parts


def _of_chains(chains: Sequence[tuple[str, int]]) -> tuple[str, list[Any]]:
    test = " OR ".join(["(writer = ? AND last_seq > ?)"] * len(chains))
    return test, [value for chain in chains for value in chain]


def _spots(rows: Rows) -> list[PageSpot]:
    return [PageSpot(row[0], row[1], int(row[2]), row[3], int(row[4])) for row in rows]


def _some_rows(spots: list[PageSpot]) -> list[PageSpot]:
    """Return the first spots, until they have so many rows as are searched at a time."""
    total = 0
    for number, spot in enumerate(spots, 1):
        total += spot.rows
        if total >= _WALKED_ROWS:
            return spots[:number]
    return spots


def _read_spots(writer: str, encoded: bytes) -> list[PageSpot]:
    """Read the spots of a segment; none of one that was damaged, which verification reports."""
    try:
        return read_spots(writer, bytes(encoded))
    except msgspec.MsgspecError as error:
        UNREADABLE.note("audit_segments", (writer,), error)
        return []


def _spots_with_all(row: Row, bounds: _TimeBounds) -> list[PageSpot]:
    """Return the pages of a segment that have all terms."""
    _, _, writer, pages, *numbers = row
    spots = _read_spots(writer, pages)
    common = set(bytes(numbers[0])).intersection(*(bytes(other) for other in numbers[1:]))
    found = [spots[number] for number in common if number < len(spots)]
    return [s for s in found if s.last_at >= bounds.since and s.first_at <= bounds.until]
