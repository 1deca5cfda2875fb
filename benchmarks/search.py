"""How good search is: nDCG@10 and hit@5 on a catalogue of tools with queries of people.

    python benchmarks/search.py FOLDER [--minilm]

FOLDER has `catalogue.jsonl` (`id`, `source`, `server`, `server_title`, `name`, `description`,
`input_schema`) and `queries.jsonl` (`query`, `groups`, `groups_full`: for each need the ids of
tools that meet it). "core" is the source livemcpbench, "full" everything. What is measured is the
product's own code: keyword index, texts, table and ranker, in this process. Both halves
of the queries are printed: the table and the weights were chosen on the even ones. Exits with 1
when Q-1 is missed.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy

from mcp_junction.catalog.items import ListItem
from mcp_junction.protocol.names import Pair
from mcp_junction.search.index import KeywordIndex, describe, tool_fields
from mcp_junction.search.ranking import Ranker
from mcp_junction.search.static_table import StaticTable
from mcp_junction.search.vectors import HoldWords, RankJob, TermEntries, VectorRows
from mcp_junction.search.words import split_clauses, tool_text

DEPTH = 10
DEFAULT = {"core": (0.57, 0.74), "full": (0.45, 0.58)}
WITH_MINILM = {"core": (0.60, 0.77), "full": (0.475, 0.61)}
"""Q-1: nDCG@10 and hit@5, at least."""


class Collection:
    """The tools of one size, indexed as the product does it, and its queries."""

    def __init__(self, tools: list[dict[str, Any]], queries: list[dict[str, Any]], key: str):
        self.queries = [each["query"] for each in queries]
        self.needs = [each[key] for each in queries]
        self.index = KeywordIndex()
        self.ranker = Ranker()
        self.ids: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        servers: dict[str, int] = {}
        places = []
        for each in tools:
            title = each["server_title"] or each["server"]
            said = {"description": each["description"] or "", "inputSchema": each["input_schema"]}
            item = ListItem(
                each["name"], {k: msgspec.Raw(msgspec.json.encode(v)) for k, v in said.items()}
            )
            server = f"{each['source']}/{each['server']}"
            fields = tool_fields(each["server"], item, title)
            number = self.index.put(Pair(server, each["name"]), fields)
            self.ids[number] = each["id"]
            self.texts[number] = tool_text(title, each["name"], describe(item))
            places.append(servers.setdefault(server, len(servers)))
        self.places = places
        self._put(StaticTable.load().embed(list(self.texts.values())), is_deep=False)

    def _put(self, matrix: Any, *, is_deep: bool) -> None:
        rows = [row.astype("<f4").tobytes() for row in matrix]
        self.ranker.put(VectorRows(list(self.texts), self.places, rows, is_deep))

    def add_model(self, model: Any) -> list[bytes]:
        """Embed the tools with a second model; returns the vectors of the queries."""
        self._put(model.embed(list(self.texts.values())), is_deep=True)
        return [row.astype("<f4").tobytes() for row in model.embed(self.queries)]

    def search(self, number: int, strategy: str, deep: bytes = b"") -> list[str]:
        """The ids of the tools found for a query."""
        query = self.queries[number]
        words = self.index.score(query)
        if strategy == "keyword":
            best = sorted(words, key=lambda one: (-words[one], one))
            return [self.ids[one] for one in best[:DEPTH]]
        entries = self.index.entries(query)
        given = [TermEntries(term, 0, found.tobytes()) for term, found in entries.items()]
        self.ranker.hold_words(HoldWords(0, given))
        job = RankJob(
            query,
            split_clauses(query),
            DEPTH,
            b"\1" * self.index.size,
            terms={term: len(found) for term, found in entries.items()},
            strategy=strategy,
            deep_query=deep,
        )
        return [self.ids[one.number] for one in self.ranker.rank(job).tools[:DEPTH]]

    def measure(self, strategy: str, deep: Sequence[bytes] = ()) -> Any:
        """nDCG@10 and hit@5 of each query."""
        queries = range(len(self.queries))
        found = [self.search(n, strategy, deep[n] if deep else b"") for n in queries]
        return numpy.array([judge(*pair) for pair in zip(found, self.needs, strict=True)])


def judge(found: list[str], needs: list[list[str]]) -> tuple[float, float]:
    """nDCG@10 with a gain for each need that is newly met, and whether the top 5 meet any."""
    met: set[int] = set()
    gain = hit = 0.0
    for rank, each in enumerate(found):
        need = next((n for n, ids in enumerate(needs) if n not in met and each in ids), None)
        if need is not None:
            met.add(need)
            gain += 1 / math.log2(rank + 2)
            hit = 1.0 if rank < 5 else hit
    return gain / sum(1 / math.log2(n + 2) for n in range(min(len(needs), DEPTH))), hit


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def show(method: str, size: str, scores: Any, least: tuple[float, float] | None) -> bool:
    def pair(some: Any) -> str:
        return f"{some[:, 0].mean():.3f}/{some[:, 1].mean():.3f}"

    good = least is None or bool((scores.mean(axis=0) >= least).all())
    wanted = "" if least is None else f"{least[0]:.3f}/{least[1]:.3f}"
    row = [method, size, pair(scores), pair(scores[0::2]), pair(scores[1::2]), wanted]
    print("| " + " | ".join([*row, "" if good else "MISSED"]) + " |", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minilm", action="store_true", help="also with the extra `semantic`")
    given = parser.parse_args()
    tools, queries = lines(given.folder / "catalogue.jsonl"), lines(given.folder / "queries.jsonl")
    sizes = {
        "core": ([one for one in tools if one["source"] == "livemcpbench"], "groups"),
        "full": (tools, "groups_full"),
    }
    print("| method | size | nDCG@10/hit@5 | even queries | odd queries | Q-1 | |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for size, (some, key) in sizes.items():
        collection = Collection(some, queries, key)
        show("keyword", size, collection.measure("keyword"), None)
        show("semantic", size, collection.measure("semantic"), None)
        good &= show("hybrid", size, collection.measure("hybrid"), DEFAULT[size])
        if given.minilm:
            from mcp_junction.search.minilm import FILE, MiniLm

            deep = collection.add_model(MiniLm.load(Path(tempfile.gettempdir()) / FILE))
            scores = collection.measure("hybrid", deep)
            good &= show("hybrid + MiniLM", size, scores, WITH_MINILM[size])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
