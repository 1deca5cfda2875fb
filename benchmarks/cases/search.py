"""Searching 10,000 tools: the index alone, in this process, without the call around it.

The tools are made up, with words as unevenly spread as they are in real catalogues. With TOOLSEARCH
in the environment, the path of a folder with `catalogue.jsonl` (`server`, `name`, `description`,
`input_schema`) and `queries.jsonl` (`query`), real ones are taken instead, as many as there are.
"""

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from budgets import AtMost, Figure
from mcp_junction.catalog.items import ListItem
from mcp_junction.protocol.names import Pair
from mcp_junction.search.index_updater import IndexUpdater, Offers
from mcp_junction.tasks import TaskScope
from registry import case
from targets import Lab

SERVERS, TOOLS, QUERIES = 100, 100, 200
VOCABULARY = 8_000
LIMIT = 10
SHARE = 10
"""One server in so many is searched where there is a filter."""

BUDGET = {
    "CPU of a search, p95": AtMost(25),
    "CPU of a filtered search, p95": AtMost(25),
    "CPU to index all": AtMost(2),
}


@case("search-10k", budget=BUDGET)
async def search_10k(lab: Lab) -> list[Figure]:
    """Keyword search over 10,000 tools of 100 servers."""
    offers, queries = real() if "TOOLSEARCH" in os.environ else made_up()
    tasks = TaskScope("search")
    updater = IndexUpdater(tasks)
    began = time.process_time()
    updater.follow(offers)
    while not updater.is_current:  # noqa: ASYNC110 - a busy loop would be left to others
        await asyncio.sleep(0.01)
    indexed = time.process_time() - began
    some = set(list(offers)[::SHARE])
    every = taken(updater, queries, lambda pair: True)
    few = taken(updater, queries, lambda pair: pair.server in some)
    note = f"{len(updater.index):,} tools, {len(queries)} queries"
    return [
        Figure("CPU of a search, p50", share(every, 0.5), "ms", note=note),
        Figure("CPU of a search, p95", share(every, 0.95), "ms", note=note),
        Figure(
            "CPU of a filtered search, p95", share(few, 0.95), "ms", note=f"1 server in {SHARE}"
        ),
        Figure("CPU to index all", indexed, "s", note=note),
    ]


def taken(updater: IndexUpdater, queries: list[str], admits: Any) -> list[float]:
    """Milliseconds of CPU for each query."""
    times = []
    for query in queries:
        began = time.thread_time()
        updater.index.search(query, LIMIT, admits)
        times.append((time.thread_time() - began) * 1000)
    return sorted(times)


def share(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))]


def described(server: str, name: str, description: str, schema: Any) -> tuple[Pair, ListItem]:
    said = {"name": name, "description": description, "inputSchema": schema}
    members = {key: Raw(msgspec.json.encode(value)) for key, value in said.items()}
    return Pair(server, name), ListItem(name, members)


def by_server(tools: list[tuple[Pair, ListItem]]) -> Offers:
    found: dict[str, list[ListItem]] = {}
    for pair, offer in tools:
        found.setdefault(pair.server, []).append(offer)
    return {server: tuple(offers) for server, offers in found.items()}


def made_up() -> tuple[Offers, list[str]]:
    chance = random.Random(7)
    letters = "aeioubcdfglmnprst"
    words = ["".join(chance.choices(letters, k=chance.randint(4, 9))) for _ in range(VOCABULARY)]
    common = [1 / (rank + 20) for rank in range(VOCABULARY)]  # the very commonest say nothing

    def some(least: int, most: int) -> list[str]:
        return chance.choices(words, common, k=chance.randint(least, most))

    tools = [
        described(
            f"{words[server]}-mcp",
            "_".join([*some(1, 3), str(number)]),
            " ".join(some(6, 40)),
            {"type": "object", "properties": {word: {"type": "string"} for word in some(0, 8)}},
        )
        for server in range(SERVERS)
        for number in range(TOOLS)
    ]
    return by_server(tools), [" ".join(some(3, 40)) for _ in range(QUERIES)]


def real() -> tuple[Offers, list[str]]:
    folder = Path(os.environ["TOOLSEARCH"])
    tools = [
        described(each["server"], each["name"], each["description"] or "", each["input_schema"])
        for each in lines(folder / "catalogue.jsonl")
    ]
    return by_server(tools), [each["query"] for each in lines(folder / "queries.jsonl")]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
