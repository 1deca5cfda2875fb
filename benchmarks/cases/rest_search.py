"""Searches over REST among 10,000 and 100,000 tools, as `serve` does them: by meaning and words.

The tools of `upstream.py` are all alike: each word of a query is in nearly all of them, which is
the most that a search by words can have to do.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles

import procs
from budgets import AtMost, Figure
from cases.audit import postgres, schema_url
from cases.platform import SEARCH, STATE, Rest, listens
from client import HttpSession, McpError
from measure import echo, settle
from registry import case
from targets import HttpTarget, Lab, Servers

COUNT, TOOLS = 10, 1_000
BUDGET = {
    "search p95": AtMost(25),
    "filtered search p95": AtMost(25),
    "scoped search p95": AtMost(25),
    "found by words after": AtMost(2),
    "found by meaning after": AtMost(30),
    "memory over 100 tools": AtMost(60),
}


WITH_CALLS = {
    "found by words after": AtMost(2),
    "found by meaning after": AtMost(30),
    "longest call beyond the floor's": AtMost(50),
}
CALLERS, PAUSE = 8, 0.02
"""How many call meanwhile, and how long each waits between its calls, in seconds."""
FLOOR_SECONDS = 4.0
LARGE = {"search p95": AtMost(60), "filtered search p95": AtMost(60)}
P50, P95 = 49, 94
SETTLED = 3.0
"""Seconds of rest after which a service counts as idle."""
RANKED_WITHIN = 120.0
"""Seconds after which searches go by meaning, at the latest; the budget is smaller."""
LONG = 1_800
"""Seconds that a case of 100,000 tools may take: most of them until all are stored."""


@case("rest-search-10k", budget=BUDGET, req=("Q-2", "Q-3"), front="http")
async def rest_search_10k(lab: Lab) -> list[Figure]:
    """Searches over REST in 10 servers of 1,000 tools: time, memory, and when all are found."""
    small, _, _ = await _begin(lab, TOOLS // 100)
    base = await _memory(small)
    await small.close()
    target, words, meaning = await _begin(lab, TOOLS)
    rest, calls = Rest(target), lab.calls(400)
    every = await _searches(rest, calls, COUNT * TOOLS)
    few = await _searches(rest, calls, 3 * TOOLS, server_filter=["s1", "s4", "s7"])
    rest.close()
    grown = await _memory(target) - base
    data = target.argv[target.argv.index("--data-dir") + 1]
    key = lab.new_key(["--data-dir", data], "agent", ["s2.*", "s5.*"])
    target.headers = {"authorization": f"Bearer {key}"}
    rest = Rest(target)
    await target.retry(lambda: rest.ask("POST", SEARCH, {"query": "a record"}))  # it hears of it
    scoped = await _searches(rest, calls, 2 * TOOLS)
    rest.close()
    note = f"wall time, {calls} searches, one caller"
    return [
        Figure("search p95", every[P95], "ms", note=note),
        Figure("filtered search p95", few[P95], "ms", note="three servers"),
        Figure("scoped search p95", scoped[P95], "ms", note="an agent with two servers"),
        Figure("found by words after", words, "s", note="discovery of all"),
        Figure("found by meaning after", meaning, "s", note="discovery of all"),
        Figure("memory over 100 tools", grown, "MiB", note="RSS of all its processes"),
    ]


@case("rest-search-10k-calls", budget=WITH_CALLS, req=("Q-2",), front="http")
async def rest_search_10k_calls(lab: Lab) -> list[Figure]:
    """When 10,000 tools are found, with callers at work from the start until all have vectors."""
    upstream = await lab.serve_direct("--tools", "1").open()
    servers: Servers = {"up": {"url": f"http://127.0.0.1:{upstream.port}/mcp"}}
    floor = await lab.serve("floor", servers).open()
    async with _callers(floor) as floor_took:
        await asyncio.sleep(FLOOR_SECONDS)
    await floor.close()
    servers |= await _servers(lab, TOOLS)
    target = lab.serve("ours", servers, role="admin")
    async with _callers(target) as took:
        words, meaning = await _wait_until_found(target, COUNT * TOOLS + 1)
    beyond = max(0.0, max(took) - max(floor_took))
    note = f"{CALLERS} callers, {len(took)} calls, p50 {median(took):.1f} ms"
    note += f"; the longest {max(took):.0f} ms, of the floor {max(floor_took):.0f}"
    await target.close()
    return [
        Figure("found by words after", words, "s", note="discovery of all"),
        Figure("found by meaning after", meaning, "s", note="discovery of all"),
        Figure("longest call beyond the floor's", beyond, "ms", note=note),
    ]


@asynccontextmanager
async def _callers(target: HttpTarget) -> AsyncIterator[list[float]]:
    """Call a tool again and again meanwhile; gives the milliseconds of each call."""
    took: list[float] = []

    async def call_on(session: HttpSession) -> None:
        while True:
            started = time.perf_counter()
            await echo(target, session)
            took.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(PAUSE)

    await listens(target)
    sessions = [target.new_client() for _ in range(CALLERS)]
    target.clients += sessions
    for session in sessions:
        await session.open()
        await target.retry(lambda session=session: echo(target, session))  # once it is connected
    running = [asyncio.create_task(call_on(session)) for session in sessions]
    yield took
    for task in running:
        task.cancel()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise McpError(f"a call failed: {ended!r}")


@case("rest-search-100k", budget=LARGE, req=("Q-3",), front="http", seconds=LONG)
async def rest_search_100k(lab: Lab) -> list[Figure]:
    """Searches over REST in 100 servers of 1,000 tools, on SQLite, vectors in memory."""
    return await _search_many(lab)


@case("rest-search-100k-pgvector", budget=LARGE, req=("Q-5",), front="http", seconds=LONG)
async def rest_search_100k_pgvector(lab: Lab) -> list[Figure]:
    """The same on PostgreSQL, which is asked for the nearest by pgvector."""
    with postgres() as server:
        url = await schema_url(server, "many")
        return await _search_many(lab, url)


async def _search_many(lab: Lab, store: str | None = None) -> list[Figure]:
    count = 10 if lab.quick else 100
    target, words, meaning = await _begin(lab, TOOLS, count, store)
    rest, calls = Rest(target), lab.calls(400)
    await _searches(rest, 20, count * TOOLS)
    await settle(target, SETTLED)
    while store is not None and not await _is_indexed(store):  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(1)
    every = await _searches(rest, calls, count * TOOLS)
    few = await _searches(rest, calls, 3 * TOOLS, server_filter=["s1", "s4", "s7"])
    rest.close()
    note = f"wall time, {calls} searches of {count * TOOLS:,} tools, one caller, else idle"
    return [
        Figure("search p50", every[P50], "ms", note=note),
        Figure("search p95", every[P95], "ms", note=note),
        Figure("filtered search p95", few[P95], "ms", note="three servers"),
        Figure("found by words after", words, "s", note="discovery of all"),
        Figure("found by meaning after", meaning, "s", note="discovery of all"),
    ]


async def _begin(
    lab: Lab, tools: int, count: int = COUNT, store: str | None = None
) -> tuple[HttpTarget, float, float]:
    """Serve so many tools of each server; returns the seconds from when all are known until they
    are found by words, and by meaning."""
    settings = {} if store is None else {"store": store}
    target = lab.serve("ours", await _servers(lab, tools, count), role="admin", **settings)
    words, meaning = await _wait_until_found(target, count * tools, store)
    rest = Rest(target)
    await _reach(rest, lambda state: state["classified_tools"] == count * tools)
    rest.close()
    return target, words, meaning


async def _servers(lab: Lab, tools: int, count: int = COUNT) -> Servers:
    upstream = await lab.serve_direct("--tools", str(tools)).open()
    url = f"http://127.0.0.1:{upstream.port}/mcp"
    return {f"s{n}": {"url": f"{url}?server={n}"} for n in range(count)}


async def _wait_until_found(
    target: HttpTarget, total: int, store: str | None = None
) -> tuple[float, float]:
    """Return the seconds from when all tools are known until they are found by words, and by
    meaning."""
    await listens(target)
    rest = Rest(target)
    await _reach(rest, lambda state: state["total_tools"] == total)
    known = time.perf_counter()
    await _reach(rest, lambda state: state["indexed_tools"] == total)
    words = time.perf_counter() - known
    data = Path(target.argv[target.argv.index("--data-dir") + 1])
    while await _kept(data, store) < total:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.1)
    asked = {"query": "look up a record", "strategy": "semantic"}
    async with asyncio.timeout(RANKED_WITHIN):  # the process that ranks starts, and is given all
        found = await rest.ask("POST", SEARCH, asked)
        while found["metadata"]["strategy"] != "semantic":
            await asyncio.sleep(0.1)
            found = await rest.ask("POST", SEARCH, asked)
    meaning = time.perf_counter() - known
    rest.close()
    return words, meaning


async def _reach(rest: Rest, is_so: Callable[[dict], bool]) -> None:
    while not is_so(await rest.ask("GET", STATE)):  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.02)


async def _kept(data: Path, store: str | None) -> int:
    """How many tools have a vector for searches in the store; in PostgreSQL, in its index."""
    if store is None:
        with sqlite3.connect(f"file:{data / 'junction.db'}?mode=ro", uri=True) as opened:
            query = "SELECT count(*) FROM tool_vectors WHERE model LIKE '%/search'"
            return int(opened.execute(query).fetchone()[0])
    import asyncpg

    connection = await asyncpg.connect(store)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM tool_nearness_256"))
    except asyncpg.UndefinedTableError:
        return 0
    finally:
        await connection.close()


async def _is_indexed(store: str) -> bool:
    """Whether pgvector has built its index, which it begins when it has all vectors."""
    import asyncpg

    connection = await asyncpg.connect(store)
    try:
        query = "SELECT count(*) FROM pg_indexes WHERE indexname = 'tool_nearness_256_hnsw'"
        return bool(await connection.fetchval(query))
    finally:
        await connection.close()


async def _memory(target: HttpTarget) -> float:
    """MiB of the service and the process that ranks; those that embed and classify have ended."""
    rest = Rest(target)
    await rest.ask("POST", SEARCH, {"query": "look up a record"})
    rest.close()
    async with asyncio.timeout(60):
        while len(target.pids()) > 2:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.2)
    return procs.rss_mib(target.pids())


async def _searches(rest: Rest, calls: int, searched: int, **more: object) -> list[float]:
    """Return the percentiles of the milliseconds that searches take."""
    taken = []
    for number in range(calls):
        asked = {"query": f"newest fields of record kind {number % 17}, number {number}", **more}
        started = time.perf_counter()
        answer = await rest.ask("POST", SEARCH, asked)
        taken.append((time.perf_counter() - started) * 1000)
        told = answer["metadata"]
        if told["total_tools_searched"] != searched or told["strategy"] != "hybrid":
            raise McpError(f"a search of other tools, or by words alone: {told}")
    return quantiles(taken, n=100)
