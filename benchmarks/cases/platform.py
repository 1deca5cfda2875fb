"""The platform: REST and the store, as `serve` runs it: SQLite, audit on. Seconds are meant."""

import asyncio
import os
import signal
import time
from statistics import quantiles

import orjson

from budgets import AtMost, Figure
from client import Http, McpError
from measure import TEXT, echo, expect_tools, list_tools
from registry import case
from targets import HttpTarget, Lab, Servers, server

SERVERS = "/api/v1/aggregator/servers"
CALL = "/api/v1/tools/call"
SEARCH = "/api/v1/search"
STATE = "/api/v1/aggregator/state"
COUNT, TOOLS = 20, 500


class Rest:
    """A client of the REST API, on one keep-alive connection."""

    def __init__(self, target: HttpTarget) -> None:
        self._http = Http("127.0.0.1", target.port)
        lines = {"host": f"127.0.0.1:{target.port}", "content-type": "application/json"}
        self._head = "".join(f"{k}: {v}\r\n" for k, v in (lines | target.headers).items())

    async def ask(self, method: str, path: str, body: object = None) -> dict:
        content = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(content)}\r\n\r\n"
        status, answer = await self._http.exchange(head.encode() + content)
        if int(status[9:12]) >= 300:
            raise McpError(f"{method} {path}: {answer[:300]!r}")
        return orjson.loads(answer)

    async def timed(self, method: str, path: str, body: object = None) -> float:
        """Milliseconds of one answer."""
        started = time.perf_counter()
        await self.ask(method, path, body)
        return (time.perf_counter() - started) * 1000

    def close(self) -> None:
        self._http.close()


async def listens(target: HttpTarget) -> float:
    """The moment from which on it takes connections."""

    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.close()

    await target.retry(connect)
    return time.perf_counter()


@case(
    "rest-register",
    budget={"first request after it listens": AtMost(2000), "registration, slowest": AtMost(2000)},
    req=("NFR-P1", "AG-US1-AC8"),
    front="http",
)
async def rest_register(lab: Lab) -> list[Figure]:
    """Stdio servers registered over REST one by one, each connected to meanwhile."""
    target = lab.serve("ours", {}, role="admin")
    await listens(target)
    rest = Rest(target)
    first = await rest.timed("GET", SERVERS)
    count = lab.calls(50)
    config = server("upstream.py", "--stdio")
    body = {"transport_type": "STDIO", "connection_config": config}
    taken = [await rest.timed("POST", SERVERS, {"name": f"s{n}", **body}) for n in range(count)]
    started = time.perf_counter()
    while (await rest.ask("GET", STATE))["connected_servers"] < count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    rest.close()
    note = f"wall time, {count} servers"
    return [
        Figure("first request after it listens", first, "ms", note="the routes are still loaded"),
        Figure("registration, p50", quantiles(taken, n=100)[49], "ms", note=note),
        Figure("registration, slowest", max(taken), "ms", note=note),
        Figure("all connected after the last", (time.perf_counter() - started) * 1000, "ms"),
    ]


@case(
    "rest-call",
    budget={"routing p50": AtMost(50), "routing p99": AtMost(50)},
    req=("NFR-P4", "AG-US4-AC6"),
    front="http",
)
async def rest_call(lab: Lab) -> list[Figure]:
    """Calls over REST, every one in the audit: what routing adds, by the answer's own word."""
    target = lab.serve("ours", {"up": server("upstream.py", "--stdio")}, role="admin")
    await target.open()
    rest = Rest(target)
    body = {"name": "up.echo", "arguments": {"text": TEXT, "topic": "bench"}}
    await rest.ask("POST", CALL, body)
    routing, whole, beside = [], [], []
    for _ in range(lab.calls(4_000)):
        started = time.perf_counter()
        told = (await rest.ask("POST", CALL, body))["metadata"]
        whole.append((time.perf_counter() - started) * 1000)
        routing.append(told["routing_time_ms"])
        started = time.perf_counter()
        await echo(target)
        beside.append((time.perf_counter() - started) * 1000)
    rest.close()
    cuts, wholes, others = (quantiles(taken, n=100) for taken in (routing, whole, beside))
    note = f"{len(routing)} calls, one caller, SQLite, audit on"
    return [
        Figure("routing p50", cuts[49], "ms", note=note),
        Figure("routing p99", cuts[98], "ms", note=f"slowest {max(routing):.2f} ms"),
        Figure("whole p50, against /mcp", wholes[49], "ms", others[49]),
        Figure("whole p99, against /mcp", wholes[98], "ms", others[98]),
    ]


@case(
    "restart-10k",
    budget={
        "stored after the start": AtMost(10),
        "listening to 10,000 tools listed": AtMost(1000),
    },
    req=("NFR-S3",),
    front="http",
)
async def restart_10k(lab: Lab) -> list[Figure]:
    """20 servers of 500 tools: how soon they are stored, and listed again after a restart."""
    upstream = await lab.serve_direct("--tools", str(TOOLS)).open()
    url = f"http://127.0.0.1:{upstream.port}/mcp"
    servers: Servers = {f"s{n:02d}": {"url": f"{url}?server={n}"} for n in range(COUNT)}
    target = lab.serve("ours", servers, role="admin")
    await listens(target)
    stored = await all_stored(target)
    listed, spawned = [], []
    for _ in range(lab.calls(10)):
        os.kill(upstream.pid, signal.SIGSTOP)  # they are there, and do not answer
        try:
            target = await lab.again(target)
            up = await listens(target)
            await target.session.open()
            names = await list_tools(target.session)
            listed.append((time.perf_counter() - up) * 1000)
            spawned.append((up - target.spawned) * 1000)
            expect_tools(target, names, COUNT * TOOLS)
        finally:
            os.kill(upstream.pid, signal.SIGCONT)
    note = f"wall time, slowest of {len(listed)}"
    return [
        Figure("stored after the start", stored, "s", note="from the spawn on"),
        Figure("listening to 10,000 tools listed", max(listed), "ms", note=note),
        Figure("spawn to listening", max(spawned), "ms", note=note),
    ]


async def all_stored(target: HttpTarget) -> float:
    """Seconds from the spawn until every server's tools are in the store."""
    rest = Rest(target)
    names = {f"s{n:02d}" for n in range(COUNT)}
    async with asyncio.timeout(60):
        while names:
            for name in sorted(names):
                found = await rest.ask("GET", f"{SERVERS}/{name}/tools?limit=1")
                if found["total"] < TOOLS:
                    break
                names.discard(name)
            await asyncio.sleep(0.05)
    rest.close()
    return time.perf_counter() - target.spawned


@case(
    "rest-search",
    budget={"search p95": AtMost(15), "search, slowest": AtMost(150)},
    req=("NFR-P3", "AG-US2-AC6", "Q-3"),
    front="http",
)
async def rest_search(lab: Lab) -> list[Figure]:
    """Searches over REST in 10 servers of 100 tools: how long each answer takes."""
    upstream = await lab.serve_direct("--tools", "100").open()
    url = f"http://127.0.0.1:{upstream.port}/mcp"
    servers: Servers = {f"s{n}": {"url": f"{url}?server={n}"} for n in range(10)}
    target = lab.serve("ours", servers, role="admin")
    await listens(target)
    rest = Rest(target)
    async with asyncio.timeout(60):
        while (await rest.ask("GET", STATE))["indexed_tools"] < 1000:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    taken = []
    for number in range(lab.calls(400)):
        query = {"query": f"return the text of tool number {number % 100}", "limit": 10}
        started = time.perf_counter()
        answer = await rest.ask("POST", SEARCH, query)
        taken.append((time.perf_counter() - started) * 1000)
        if answer["metadata"]["total_tools_searched"] != 1000 or not answer["tools"]:
            raise McpError(f"a search that finds nothing: {answer['metadata']}")
    rest.close()
    cuts = quantiles(taken, n=100)
    note = f"wall time, {len(taken)} searches, one caller"
    return [
        Figure("search p50", cuts[49], "ms", note=note),
        Figure("search p95", cuts[94], "ms", note=note),
        Figure("search, slowest", max(taken), "ms", note=note),
    ]


@case("discover", budget={"1,200 tools of a server": AtMost(5)}, req=("NFR-P2",), front="http")
async def discover(lab: Lab) -> list[Figure]:
    """How long until all tools of a new server are listed, indexed and stored."""
    target = lab.serve("ours", {}, role="admin")
    await listens(target)
    rest = Rest(target)
    upstream = await lab.serve_direct("--tools", "1200").open()
    config = {"url": f"http://127.0.0.1:{upstream.port}/mcp"}
    body = {"name": "many", "transport_type": "HTTP", "connection_config": config}
    started = time.perf_counter()
    await rest.ask("POST", SERVERS, body)
    stored = f"{SERVERS}/many/tools?limit=1"
    async with asyncio.timeout(60):
        while (await rest.ask("GET", STATE))["indexed_tools"] < 1200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while (await rest.ask("GET", stored))["total"] < 1200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    seconds = time.perf_counter() - started
    rest.close()
    return [Figure("1,200 tools of a server", seconds, "s", note="wall time, from registration on")]


@case(
    "classify",
    budget={
        "the first tool": AtMost(3),
        "50 tools": AtMost(5),
        "one more tool": AtMost(3),
        "not classified of 1,000": AtMost(10),
    },
    req=("K-3", "AG-US3-AC6", "AG-US3-AC7", "NFR-P5"),
    front="http",
)
async def classify(lab: Lab) -> list[Figure]:
    """How long new tools take to get their skills, from the registration of their server on."""
    first, _ = await _time_classified(lab, {"first": 1})
    seconds, left = await _time_classified(lab, {"many": 50, "one": 1, "thousand": 1000})
    loaded = "wall time, the model loaded meanwhile"
    return [
        Figure("the first tool", first["first"], "s", note=loaded),
        Figure("50 tools", seconds["many"], "s", note=loaded),
        Figure("one more tool", seconds["one"], "s", note="wall time"),
        Figure("1,000 tools", seconds["thousand"], "s", note="wall time"),
        Figure("not classified of 1,000", left, "tools"),
    ]


async def _time_classified(lab: Lab, sizes: dict[str, int]) -> tuple[dict[str, float], int]:
    """Register servers with so many tools at a new service, one after the other.

    The seconds until each was classified, and how many tools were not.
    """
    target = lab.serve("ours", {}, role="admin")
    await listens(target)
    rest = Rest(target)
    seconds, total = {}, 0
    for name, count in sizes.items():
        upstream = await lab.serve_direct("--tools", str(count)).open()
        total += count
        url = f"http://127.0.0.1:{upstream.port}/mcp"
        body = {"name": name, "transport_type": "HTTP", "connection_config": {"url": url}}
        started = time.perf_counter()
        await rest.ask("POST", SERVERS, body)
        state = await _classified(rest, total)
        seconds[name] = time.perf_counter() - started
    rest.close()
    await target.end()
    if state["total_tools"] != total:
        raise McpError(f"{state['total_tools']} tools instead of {total}")
    return seconds, total - state["classified_tools"]


async def _classified(rest: Rest, total: int) -> dict:
    """The state once all tools are classified, or nothing has changed for 10 seconds."""
    state = await rest.ask("GET", STATE)
    changed = time.perf_counter()
    while state["classified_tools"] < total and time.perf_counter() - changed < 10:
        await asyncio.sleep(0.05)
        before, state = state, await rest.ask("GET", STATE)
        if before["classified_tools"] != state["classified_tools"]:
            changed = time.perf_counter()
    return state
