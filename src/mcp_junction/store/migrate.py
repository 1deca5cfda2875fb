"""Migrations: numbered SQL files, applied in order, each once, by one process at a time.

A line that ends in ``-- only sqlite`` or ``-- only postgres`` is for that dialect; all others are
for both. What was applied is in the table ``migrations``; a store from a newer program is refused.
"""

from __future__ import annotations

import time
from importlib import resources
from typing import Final, NamedTuple

from mcp_junction.errors import UsageError
from mcp_junction.store.database import Dialect, Query, Script, statements

# PostgreSQL: any number that is only ours. SQLite needs none: its write lock is the guard.
_LOCK: Final = 0x6A756E63


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All that this program knows, in order."""
    found = []
    for file in resources.files("mcp_junction.store").joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return sorted(found)


def in_dialect(sql: str, dialect: Dialect) -> str:
    """The lines of a migration that are meant for one dialect."""
    kept = []
    for line in sql.splitlines():
        text, marked, only = line.partition("-- only ")
        if not marked:
            kept.append(text.partition("--")[0].rstrip())
        elif only.strip() == dialect:
            kept.append(text.rstrip())
    return "\n".join(line for line in kept if line) + "\n"


def migrate(dialect: Dialect) -> Script[int]:
    """Bring the schema up to date; the number it then has."""
    if dialect is Dialect.POSTGRES:
        yield Query("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
    yield Query(
        "CREATE TABLE IF NOT EXISTS migrations"
        " (number BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at DOUBLE PRECISION NOT NULL)"
    )
    rows = yield Query("SELECT number FROM migrations")
    applied = {int(row[0]) for row in rows}
    known = migrations()
    latest = known[-1].number
    if applied and max(applied) > latest:
        raise UsageError(
            f"the store has schema {max(applied)}, this program knows {latest}:"
            " it was used by a newer version; upgrade mcp-junction"
        )
    for migration in known:
        if migration.number not in applied:
            for sql in statements(in_dialect(migration.sql, dialect)):
                yield Query(sql)
            yield Query(
                "INSERT INTO migrations (number, name, applied_at) VALUES (?, ?, ?)",
                (migration.number, migration.name, time.time()),
            )
    return latest
