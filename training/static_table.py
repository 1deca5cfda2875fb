"""Trains the static table of search (`src/mcp_junction/search/data`).

    python training/static_table.py FOLDER --wordnet DICT --minilm WEIGHTS --steps 2400

FOLDER has `catalogue.jsonl` and `categories.jsonl` (texts of tools and servers), DICT the files of
WordNet 3.1 (`data.noun` …), WEIGHTS the `model.safetensors` of all-MiniLM-L6-v2. The first values
are WordLlama's vectors of each piece (the wheel `wordllama`, read with `tokenizers`: dependency
group `training`) times a weight that falls with its frequency. Then Adam, with numpy alone: KL of
the similarities in a batch against MiniLM's (temperature .05, weight 4) and InfoNCE (.6). 45 % of
the batches are of tools (with others of their server as negatives), the rest servers' titles and
descriptions, and WordNet's words and glosses. Queries are never read. The teacher takes about 20
minutes of CPU, training 5. Afterwards put the printed id into `search/static_table.py` and run
`training/skills.py FOLDER --write`. The shipped table was trained by this method; another run gives
other numbers of about the same quality, which `benchmarks/search.py` measures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mcp_junction.search import static_table
from mcp_junction.search.minilm import MiniLm, convert
from mcp_junction.search.static_table import DIMENSIONS, ROWS_FILE, SCALES_FILE
from mcp_junction.search.texts import split_name, tool_text
from mcp_junction.search.wordpiece import WordPiece, vocabulary

DATA = Path(static_table.__file__).parent / "data"
SPECIAL = 104
"""Pieces that stand for no text: unused ones and marks. Their vectors stay zero."""
SIF = 1e-3
TAU, KL, NCE = 0.05, 4.0, 0.6
BATCH, RATE = 256, 0.003
SYNSETS, SERVERS = 12_000, 3_000

split = WordPiece()
Pieces = list[list[int]]


def first_values(texts: list[str]) -> Any:
    """WordLlama's vectors of the pieces, weighted by their frequency in these texts."""
    from tokenizers import Tokenizer

    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise SystemExit("install the dependency group `training`")
    folder = Path(spec.origin).parent
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    raw = (folder / "weights/l2_supercat_256.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + size])["embedding.weight"]["data_offsets"]
    body = raw[8 + size + begin : 8 + size + end]
    table = np.frombuffer(body, np.float16).reshape(-1, DIMENSIONS).astype(np.float32)
    found = np.zeros((len(vocabulary()), DIMENSIONS), np.float32)
    for number, piece in enumerate(vocabulary()[SPECIAL:], SPECIAL):
        tokens = tokenizer.encode(piece.removeprefix("##"), add_special_tokens=False).ids
        if piece.startswith("##") and len(tokens) > 1 and tokenizer.id_to_token(tokens[0]) == "▁":
            tokens = tokens[1:]
        if tokens:
            found[number] = table[tokens].mean(axis=0)
    counts = Counter(number for text in texts for number in split(text))
    share = np.array([counts[number] for number in range(len(found))]) / counts.total()
    found *= (SIF / (SIF + share)).astype(np.float32)[:, None]
    lengths = np.linalg.norm(found, axis=1)
    return found / lengths[lengths > 0].mean()


def read_wordnet(folder: Path) -> list[tuple[str, str]]:
    """Words and glosses of the synsets that are used most, and some others."""
    used: Counter[tuple[str, str]] = Counter()
    kinds = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
    for line in (folder / "index.sense").read_text("utf-8").splitlines():
        sense, offset, _, count = line.split()
        used[kinds[sense.split("%")[1][0]], offset] += int(count)
    found = []
    for kind in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{kind}").read_text("utf-8").splitlines():
            if line.startswith("  "):
                continue
            head, gloss = line.split(" | ", 1)
            parts = head.split()
            words = [parts[4 + 2 * n].split("(")[0] for n in range(int(parts[3], 16))]
            weight = used[kind, parts[0]] + (2 if kind == "verb" else 0)
            said = ", ".join(word.replace("_", " ") for word in words[:4])
            found.append((weight, said, gloss.strip()[:160]))
    random.Random(1).shuffle(found)
    found.sort(key=lambda one: -min(one[0], 3))
    return [(words, gloss) for _, words, gloss in found[:SYNSETS]]


class Corpus:
    """Pairs of texts that mean the same, as pieces, with the teacher's vectors of each side."""

    def __init__(self, folder: Path, wordnet: Path, teacher: MiniLm) -> None:
        lines = (folder / "catalogue.jsonl").read_text("utf-8").splitlines()
        tools = [json.loads(line) for line in lines]
        titles = [tool["server_title"] or tool["server"] for tool in tools]
        self.texts = [
            tool_text(title, tool["name"], tool["description"] or "")
            for title, tool in zip(titles, tools, strict=True)
        ]
        names = [split_name(tool["name"]) for tool in tools]
        self.full = list(map(split, self.texts))
        self.names = list(map(split, names))
        self.titled = [split(f"{t} {n}") for t, n in zip(titles, names, strict=True)]
        self.said = [split((tool["description"] or "")[:250]) for tool in tools]
        self.tool_vectors = teacher.embed(self.texts)
        self.name_vectors = teacher.embed(names)
        self.by_server: dict[tuple[str, str], list[int]] = {}
        for number, tool in enumerate(tools):
            if len(self.said[number]) >= 4:
                self.by_server.setdefault((tool["source"], tool["server"]), []).append(number)
        pairs = {"words": read_wordnet(wordnet), "servers": read_servers(folder)}
        self.pairs = {
            key: (
                [split(left) or [0] for left, _ in some],
                [split(right) or [0] for _, right in some],
                teacher.embed([left for left, _ in some]),
                teacher.embed([right for _, right in some]),
            )
            for key, some in pairs.items()
        }

    def choose_tools(self, chance: Any) -> list[int]:
        """Tools of some servers, up to eight of each: a server's others are hard negatives."""
        found: list[int] = []
        servers = list(self.by_server.values())
        for place in chance.permutation(len(servers)):
            found += list(chance.permutation(servers[place])[:8])
            if len(found) >= BATCH:
                break
        return found[:BATCH]

    def batch(self, chance: Any) -> tuple[Pieces, Pieces | None, Any, Any]:
        """Two sides and the teacher's vectors of each; no second side: each with the others."""
        drawn = chance.random()
        if drawn < 0.45:
            return self._tool_batch(chance, int(chance.integers(4)) if drawn < 0.35 else 3)
        left, right, left_vectors, right_vectors = self.pairs["servers" if drawn < 0.6 else "words"]
        some = chance.permutation(len(left))[:BATCH]
        sides = [left[n] for n in some], [right[n] for n in some]
        return *sides, left_vectors[some], right_vectors[some]

    def _tool_batch(self, chance: Any, kind: int) -> tuple[Pieces, Pieces | None, Any, Any]:
        some = self.choose_tools(chance)
        said, vectors = [self.said[n] for n in some], self.tool_vectors[some]
        if kind == 0:
            return [self.names[n] for n in some], said, self.name_vectors[some], vectors
        if kind == 1:
            cuts = [cut_span(pieces, chance) for pieces in said]
            return [cut for cut, _ in cuts], [rest for _, rest in cuts], None, None
        if kind == 2:
            return [self.titled[n] for n in some], said, vectors, vectors
        return [self.full[n] for n in some], None, vectors, vectors


def read_servers(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "categories.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    found = [one for one in found if (one.get("server_description") or "").strip()]
    random.Random(1).shuffle(found)
    return [
        (split_name(one["server_title"] or one["server"]), one["server_description"][:200])
        for one in found[:SERVERS]
    ]


def cut_span(pieces: list[int], chance: Any) -> tuple[list[int], list[int]]:
    """A part of a text, and the rest of it."""
    begin = int(chance.integers(0, max(1, len(pieces) // 2)))
    end = begin + max(3, len(pieces) // 3)
    part = pieces[begin:end]
    return part, (pieces[:begin] + pieces[end:]) or part


class Trainer:
    """Adam over the rows that a batch has."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._mean, self._square, self._step = np.zeros_like(table), np.zeros_like(table), 0

    def step(self, left: Pieces, right: Pieces | None, teachers: Any, rate: float) -> None:
        sides = [left] if right is None else [left, right]
        rows = np.unique([piece for side in sides for pieces in side for piece in pieces])
        counts = [count_pieces(side, rows) for side in sides]
        sums = [count @ self.table[rows] for count in counts]
        lengths = [np.linalg.norm(one, axis=1, keepdims=True) + 1e-6 for one in sums]
        units = [one / length for one, length in zip(sums, lengths, strict=True)]
        slopes = slope(units[0], units[-1], teachers, is_self=right is None)
        if right is None:
            slopes = (slopes[0] + slopes[1],)
        gradient = np.zeros((len(rows), DIMENSIONS), np.float32)
        for count, unit, length, each in zip(counts, units, lengths, slopes, strict=True):
            along = (each * unit).sum(axis=1, keepdims=True)
            gradient += count.T @ ((each - along * unit) / length)
        self._update(rows, gradient, rate)

    def _update(self, rows: Any, gradient: Any, rate: float) -> None:
        self._step += 1
        mean = self._mean[rows] = 0.9 * self._mean[rows] + 0.1 * gradient
        square = self._square[rows] = 0.99 * self._square[rows] + 0.01 * gradient**2
        mean = mean / (1 - 0.9**self._step)
        square = square / (1 - 0.99**self._step)
        self.table[rows] -= rate * mean / (np.sqrt(square) + 1e-8)


def count_pieces(side: Pieces, rows: Any) -> Any:
    found = np.zeros((len(side), len(rows)), np.float32)
    for number, pieces in enumerate(side):
        np.add.at(found[number], np.searchsorted(rows, pieces), 1)
    return found


def slope(left: Any, right: Any, teachers: Any, *, is_self: bool) -> tuple[Any, Any]:
    """The slopes of the loss, by the unit vectors of both sides."""
    scores = left @ right.T / TAU
    same = np.eye(len(scores), dtype=np.float32)
    if is_self:
        scores -= 1e4 * same
    ahead, back = softmax(scores), softmax(scores.T)
    total = np.zeros_like(scores)
    if teachers[0] is not None:
        wanted = teachers[0] @ teachers[1].T / TAU - (1e4 * same if is_self else 0)
        total += KL * ((ahead - softmax(wanted)) + (back - softmax(wanted.T)).T)
    if not is_self:
        total += NCE * ((ahead - same) + (back - same).T)
    total /= 2 * len(scores) * TAU
    return total @ right, total.T @ left


def softmax(scores: Any) -> Any:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def write(table: Any, folder: Path) -> str:
    """Write the table as int8 with a scale for each row; return its id."""
    table[:SPECIAL] = 0
    scales = (np.abs(table).max(axis=1) / 127).astype(np.float16)
    divisors = np.where(scales > 0, scales.astype(np.float32), 1)[:, None]
    rows = np.clip(np.rint(table / divisors), -127, 127).astype(np.int8)
    np.save(folder / ROWS_FILE, rows)
    np.save(folder / SCALES_FILE, scales)
    digest = hashlib.sha256(rows.tobytes() + scales.tobytes()).hexdigest()
    return f"static-{DIMENSIONS}-{digest[:8]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2_400)
    parser.add_argument("--out", type=Path, default=DATA)
    given = parser.parse_args()
    weights = Path(tempfile.mkdtemp()) / "minilm.npz"
    convert(given.minilm, weights)
    corpus = Corpus(given.folder, given.wordnet, MiniLm.load(weights))
    trainer, chance = Trainer(first_values(corpus.texts)), np.random.default_rng(0)
    for step in range(given.steps):
        left, right, *teachers = corpus.batch(chance)
        rate = RATE * min(1, step / 50) * (1 - 0.9 * step / given.steps)
        trainer.step(left, right, teachers, rate)
        if step % 200 == 199:
            print(f"{step + 1} steps", flush=True)
    print(write(trainer.table, given.out))


if __name__ == "__main__":
    main()
