"""Audit: the shelf of audit rows and of who writes them. What a chain is, is ``audit/``'s business.

Rows are only ever appended, and removed from the old end of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mcp_junction.store.database import Compute, Database, Load, Query, Row, Rows, Script, insert
from mcp_junction.store.records import AuditQuery, AuditRow, AuditWriter, SealedRow
from mcp_junction.store.table import Table

WRITERS = Table("audit_writers", AuditWriter)
_FIELDS = AuditRow.__struct_fields__
_COLUMNS = (*_FIELDS, "mac")
_SELECT = f"SELECT {', '.join(f'a.{column}' for column in _COLUMNS)} FROM audit a"
_CACHED = _FIELDS.index("cached")
_EQUAL = ("kind", "actor", "action", "server_id", "target", "correlation_id")
_as_tuple = msgspec.structs.astuple


class AuditTrail:
    """All chains of the audit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- writing

    async def append(
        self, seal: Callable[[], Sequence[SealedRow]], now: float, *, durable: bool
    ) -> None:
        """Store the rows that ``seal`` gives; it is called off the event loop.

        The same rows may be given again when nobody knows whether the first time succeeded. All
        are of one writer, which is noted as seen.
        """
        await self._database.write(_append(seal, now), durable=durable)

    async def enter(self, writer: AuditWriter) -> SealedRow | None:
        """Make a writer known; the newest row of the writer that opened last before it."""
        return await self._database.write(_enter(writer))

    async def leave(self, writers: Sequence[str], now: float) -> None:
        """Note that writers have ended."""
        await self._database.write(_leave(writers, now))

    async def seen(self, writer: str, now: float) -> None:
        await self._database.write(_seen(writer, now), durable=False)

    async def retire(self, writer: str, through: int) -> int:
        """Remove the old end of a chain; how many rows that were."""
        return await self._database.write(_retire(writer, through))

    # -- reading

    async def rows(self, asked: AuditQuery) -> list[SealedRow]:
        """Newest first."""
        return await self._database.read(_asked(asked), _rows)

    async def chain(self, writer: str, after: int = 0, limit: int = 5_000) -> list[SealedRow]:
        """One chain's rows, oldest first."""
        query = Query(
            f"{_SELECT} WHERE a.writer = ? AND a.seq > ? ORDER BY a.seq LIMIT ?",
            (writer, after, limit),
        )
        return await self._database.read(query, _rows)

    async def writers(self) -> list[AuditWriter]:
        """By the time they opened."""
        query = Query(f"SELECT {WRITERS.selected} FROM audit_writers ORDER BY opened_at, writer")
        return await self._database.read(query, WRITERS.records)

    async def chains(self) -> list[str]:
        """Whose rows there are, entered or not."""
        query = Query("SELECT DISTINCT writer FROM audit ORDER BY writer")
        return await self._database.read(query, lambda rows: [row[0] for row in rows])

    async def anchors(self) -> list[SealedRow]:
        """The rows that vouch for what retention removed, oldest first."""
        query = Query(f"{_SELECT} WHERE a.kind = 'anchor' ORDER BY a.at, a.writer, a.seq")
        return await self._database.read(query, _rows)

    async def open_intents(self, writers: Sequence[str], limit: int = 10_000) -> list[SealedRow]:
        """Intents of these writers that no outcome has closed."""
        if not writers:
            return []
        query = Query(
            f"{_SELECT} WHERE a.kind = 'intent' AND a.writer IN ({', '.join('?' * len(writers))})"
            " AND NOT EXISTS (SELECT 1 FROM audit o WHERE o.closes IS NOT NULL"
            " AND o.closes = a.writer || ':' || CAST(a.seq AS TEXT))"
            " ORDER BY a.writer, a.seq LIMIT ?",
            (*writers, limit),
        )
        return await self._database.read(query, _rows)

    async def oldest_ends(self, before: float) -> list[SealedRow]:
        """Of each chain, the last row of the part that is older than a time."""
        query = Query(
            f"{_SELECT} JOIN (SELECT writer, max(seq) AS seq FROM audit WHERE at < ?"
            " GROUP BY writer) old ON old.writer = a.writer AND old.seq = a.seq ORDER BY a.writer",
            (before,),
        )
        return await self._database.read(query, _rows)


def _append(seal: Callable[[], Sequence[SealedRow]], now: float) -> Script[None]:
    (made,) = yield Compute(lambda: [(*_as_tuple(s.row), s.mac) for s in seal()])
    rows: list[tuple[Any, ...]] = made[0]
    if not rows:
        return
    writer = rows[0][0]
    (found,) = yield Query("SELECT max(seq) FROM audit WHERE writer = ?", (writer,))
    there = found[0] or 0
    fresh = [row for row in rows if row[1] > there] if there >= rows[0][1] else rows
    if fresh:
        yield Load("audit", _COLUMNS, fresh)
    yield from _seen(writer, now)


def _enter(writer: AuditWriter) -> Script[SealedRow | None]:
    before = yield Query(
        f"{_SELECT} JOIN audit_writers w ON w.writer = a.writer"
        " ORDER BY w.opened_at DESC, a.seq DESC LIMIT 1"
    )
    yield Query(insert("audit_writers", WRITERS.columns), WRITERS.values(writer))
    return _sealed(before[0]) if before else None


def _leave(writers: Sequence[str], now: float) -> Script[None]:
    for writer in sorted(writers):
        yield Query("UPDATE audit_writers SET closed_at = ? WHERE writer = ?", (now, writer))


def _seen(writer: str, now: float) -> Script[None]:
    yield Query("UPDATE audit_writers SET seen_at = ? WHERE writer = ?", (now, writer))


def _retire(writer: str, through: int) -> Script[int]:
    rows = yield Query(
        "SELECT count(*) FROM audit WHERE writer = ? AND seq <= ?", (writer, through)
    )
    yield Query("DELETE FROM audit WHERE writer = ? AND seq <= ?", (writer, through))
    yield Query(
        "DELETE FROM audit_writers WHERE writer = ? AND closed_at IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM audit WHERE audit.writer = audit_writers.writer)",
        (writer,),
    )
    return int(rows[0][0])


def _asked(asked: AuditQuery) -> Query:
    tests: list[str] = []
    args: list[Any] = []
    for column in _EQUAL:
        if (value := getattr(asked, column)) is not None:
            tests.append(f"a.{column} = ?")
            args.append(value)
    if asked.since is not None:
        tests.append("a.at >= ?")
        args.append(asked.since)
    if asked.until is not None:
        tests.append("a.at < ?")
        args.append(asked.until)
    if asked.before is not None:
        tests.append("(a.at, a.writer, a.seq) < (?, ?, ?)")
        args.extend(asked.before)
    where = f"WHERE {' AND '.join(tests)}" if tests else ""
    order = "ORDER BY a.at DESC, a.writer DESC, a.seq DESC LIMIT ?"
    return Query(f"{_SELECT} {where} {order}", (*args, asked.limit))


def _rows(rows: Rows) -> list[SealedRow]:
    return [_sealed(row) for row in rows]


def _sealed(row: Row) -> SealedRow:
    values = list(row)
    values[_CACHED] = bool(values[_CACHED])
    mac = values.pop()
    return SealedRow(AuditRow(*values), bytes(mac))
