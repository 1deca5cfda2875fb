"""The audit: rows found by a filter among ten million, on both stores. Wall time is meant.

The rows are made here and not by calls, which would take hours: pages of fifty are written as they
are, with the index that a writer makes of them. Their MACs are nonsense; nothing here verifies.
"""

import asyncio
import itertools
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

from budgets import AtMost, Figure
from registry import case
from targets import Lab

ROWS, QUICK_ROWS = 10_000_000, 400_000
PAGE = 50
AGENTS = 1_000
TOOLS = 200
ROUNDS = 9
START = 1_700_000_000.0
WRITER = "0123456789abcdef"
BUSY, RARE = "agent-0", "rare-agent"
_DIGEST = "5df1f1b0c8e9a7d64b3e2f1a0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d"
_SUMMARY = "the first words of what the tool said, cut and redacted"


class Parts:
    """What the lines of a kind of call share: all but number, time and correlation id."""

    def __init__(self, agent: str, number: int) -> None:
        tool, server = f"tool-{number % TOOLS}", f"server-{number % 20}"
        self.head = f',"call","{agent}","agent","tools/call","'
        self.tail = (
            f'","{server}","box.{tool}","ALLOW",true,"{_DIGEST}","ok",null,1,12.345,"{_SUMMARY}",'
            f'null,null,null,"{tool}","grant:0f1e2d3c",null,null]'
        )
        self.key = agent, None, server, tool, f"box.{tool}", "ALLOW"


def make_pages(rows: int) -> Iterator[tuple]:
    """Pages, each with the segment that it completes, if it does."""
    from mcp_junction.store.audit_records import AuditPage
    from mcp_junction.store.audit_terms import SegmentBuilder

    builder = SegmentBuilder(WRITER)
    tags, mac = bytes(16 * PAGE), bytes(32)
    rare, rare_parts = set(range(rows // 40, rows, rows // 20)), Parts(RARE, 1)
    order = [n * 104_729 % 7_919 for n in range(7_919)]  # without a pattern to a page
    kinds = [Parts(BUSY if n % 3 == 0 else f"agent-{n % AGENTS}", n) for n in order]
    pick = itertools.cycle(kinds)
    for first in range(1, rows + 1, PAGE):
        lines, keys, correlations, places = [], set(), [], {}
        for seq in range(first, first + PAGE):
            at = START + seq / 100
            if seq in rare:
                parts = rare_parts
            elif seq % 3:  # each third is one more of the caller before
                parts = next(pick)
            if seq % 10:
                correlation = f"j{int(at * 1000):x}-0a0b0c0d-{seq:x}"
            else:
                correlation = f"req-{seq}"
                correlations.append(correlation)
            place = places.setdefault(id(parts), len(lines))
            if place == len(lines):
                lines.append(f'["{WRITER}",{seq},{at:.3f}{parts.head}{correlation}{parts.tail}')
            else:  # as a writer does with the further calls of one caller to one tool
                own = f'"{correlation}","{_DIGEST}",12.345,"{_SUMMARY}"'
                lines.append(f"[{place},{at:.3f},{own}]")
            keys.add(parts.key)
        last = first + PAGE - 1
        times = START + first / 100, START + last / 100
        page = AuditPage(WRITER, first, last, *times, mac, tags, "\n".join(lines).encode())
        yield page, builder.add(page, keys, correlations)
    rest = builder.close()
    if rest is not None:
        yield None, rest


def statements(rows: int) -> Iterator[tuple[str, list[tuple]]]:
    """Rows of tables, a few thousand at a time."""
    pages, segments, terms = [], [], []
    for page, segment in make_pages(rows):
        if page is not None:
            pages.append(
                (page.writer, page.first_seq, page.last_seq, page.first_at, page.last_at,
                 page.mac, page.tags, page.body)
            )  # fmt: skip
        if segment is not None:
            number = len(segments) + 1
            segments.append(
                (number, segment.writer, segment.first_seq, segment.last_seq, segment.first_at,
                 segment.last_at, segment.pages, segment.term_list, segment.correlations)
            )  # fmt: skip
            at = segment.last_at, number, segment.first_at
            terms += [(term, *at, numbers) for term, numbers in segment.terms.items()]
        if len(pages) >= 1_000:
            yield "audit_pages", pages
            pages = []
    yield "audit_pages", pages
    yield "audit_segments", segments
    yield "audit_terms", terms
    yield "audit_writers", [(WRITER, "k", "bench", 1, START, START, START)]


def fill_sqlite(path: Path, rows: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for table, many in statements(rows):
        if many:
            connection.execute("BEGIN")
            marks = ", ".join("?" * len(many[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", many)
            connection.execute("COMMIT")
    connection.execute("ANALYZE")
    connection.close()


async def fill_postgres(url: str, rows: int) -> None:
    import asyncpg

    made, lock = statements(rows), asyncio.Lock()

    async def copy() -> None:
        while True:
            async with lock:
                table, many = await asyncio.to_thread(next, made, ("", []))
            if not table:
                return
            await pool.copy_records_to_table(table, records=many)

    async with asyncpg.create_pool(url, min_size=2, max_size=2) as pool:
        for table in ("audit_pages", "audit_terms", "audit_segments"):
            await pool.execute(f"ALTER TABLE {table} SET UNLOGGED")  # nothing here reads its log
        async with asyncio.TaskGroup() as group:
            for _ in range(2):  # the pages are compressed there, which takes longest
                group.create_task(copy())
        await pool.execute("ANALYZE")


@contextmanager
def postgres(*, is_durable: bool = False) -> Iterator[str]:
    """The URL of a PostgreSQL of the tests that is there for this case alone."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.postgres_server import NoPostgres, Server, open_folder

    try:
        server = Server(open_folder() / f"jct-pg-bench-{os.getpid()}")
        try:
            server.make()
            server.start(is_durable=is_durable)
            yield server.url
        finally:
            server.remove()
    except NoPostgres as error:
        raise OSError(f"no PostgreSQL: {error}") from None


async def schema_url(server: str, name: str) -> str:
    """The URL of a new schema of a PostgreSQL."""
    import asyncpg

    connection = await asyncpg.connect(server)
    await connection.execute(f"CREATE SCHEMA {name}")
    await connection.close()
    return f"{server}&search_path={name}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator:
    from mcp_junction.store.store import open_store
    from mcp_junction.vault.vault import Vault

    store = await open_store(url, Vault([bytes(32)]))
    try:
        yield store
    finally:
        await store.close()


async def measure(trail: object, rows: int) -> list[Figure]:
    from mcp_junction.store.audit_records import AuditQuery

    ours = rows - 901
    middle = {"before": (START + rows / 200, "~", 0)}
    queries: dict[str, dict] = {
        "a rare agent": {"agent": RARE},
        "a busy agent": {"agent": BUSY},
        "a busy agent, half way back": {"agent": BUSY, **middle},
        "one agent of many": {"agent": "agent-17"},
        "an agent and a tool": {"agent": BUSY, "tool": "tool-3"},
        "an agent's own calls": {"own_calls_of": RARE},
        "nobody": {"agent": "nobody"},
        "a correlation id of ours": {
            "correlation_id": f"j{int((START + ours / 100) * 1000):x}-0a0b0c0d-{ours:x}"
        },
        "a correlation id of a client": {"correlation_id": f"req-{rows // 20 * 10}"},
        "no filter": {},
    }
    figures = []
    for what, query in queries.items():
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            found = await trail.find(AuditQuery(**query, limit=100))
            took.append((time.perf_counter() - began) * 1000)
        note = f"first {took[0]:.1f} ms, then the median; {len(found.rows)} rows"
        figures.append(Figure(f"a page: {what}", median(took), "ms", note=note))
    return figures


FILLED_WITHIN = 900
BUDGET = {
    f"a page: {what}": AtMost(100)
    for what in (
        "a rare agent",
        "a busy agent",
        "a busy agent, half way back",
        "one agent of many",
        "an agent and a tool",
        "an agent's own calls",
        "a correlation id of ours",
        "a correlation id of a client",
    )
}


@case("audit-find-sqlite", budget=BUDGET, req=("REQ-MCP-OBS-002",), seconds=FILLED_WITHIN)
async def audit_find_sqlite(lab: Lab) -> list[Figure]:
    """Pages of filtered audit rows among ten million, on SQLite."""
    rows, path = QUICK_ROWS if lab.quick else ROWS, lab.folder / "audit.db"
    async with opened(f"sqlite:///{path}"):
        pass
    await asyncio.to_thread(fill_sqlite, path, rows)
    async with opened(f"sqlite:///{path}") as store:
        return [*await measure(store.audit, rows), size(rows, path.stat().st_size)]


@case("audit-find-postgres", budget=BUDGET, req=("REQ-MCP-OBS-002",), seconds=FILLED_WITHIN)
async def audit_find_postgres(lab: Lab) -> list[Figure]:
    """Pages of filtered audit rows among ten million, on PostgreSQL."""
    rows = QUICK_ROWS if lab.quick else ROWS
    with postgres() as url:
        async with opened(url):
            pass
        await fill_postgres(url, rows)
        async with opened(url) as store:
            return await measure(store.audit, rows)


def size(rows: int, octets: int) -> Figure:
    return Figure("the store", octets / 2**20, "MiB", note=f"{rows:,} rows")
