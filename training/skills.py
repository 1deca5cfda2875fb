"""Trains the offline classifier of skills, and measures it cross-validated by server.

    python training/skills.py FOLDER          print the table
    python training/skills.py FOLDER --write  train on everything and write the weights

FOLDER has the catalogue, the servers' categories and the taxonomy (``catalogue.jsonl``,
``categories.jsonl``, ``category_to_skills.json``, ``skills.json``). A tool has its server's
category, which stands for some skills, each as good as the others: the loss is that of a partial
label. It needs numpy alone. Run it again when the static table is another.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mcp_junction.search.static_table import MODEL, StaticTable
from mcp_junction.skills.features import ToolText, make_text
from mcp_junction.skills.offline import (
    OWN,
    VECTOR_SCALE,
    WEIGHTS,
    average,
    mix,
    normalize,
    pool,
    weigh_terms,
)

ALONE = "the tool alone"
PHRASES = Path(__file__).with_name("skill_phrases.txt")
MOST_TERMS = 14_000
FOLDS = 5
ZERO_SHOT = 0.1
"""The temperature of zero-shot targets, which tell apart the skills of one category."""
TOWARDS_ZERO_SHOT = 0.3
RIGHT = 0.875
"""How often the first skill is to be right where its confidence is at least one half."""
SERVER_TEXT, PHRASE = 0.7, 0.5
"""How much a server's own text, and one of our phrases, count as examples; a tool of a server of
its own counts 1."""


class Examples(NamedTuple):
    """Texts with the skills that are right for them: tools, then servers, then phrases."""

    texts: list[ToolText]
    right: np.ndarray
    weights: np.ndarray
    server: np.ndarray
    """The number of each text's server; -1 for phrases."""
    tools: int
    skills: list[dict[str, str]]
    titles: list[ToolText]
    """The titles of servers alone."""

    @property
    def servers(self) -> int:
        return len(self.titles)


def read_examples(folder: Path) -> Examples:
    """Read the catalogue with the categories that stand for skills, and our own phrases."""
    skills = json.loads((folder / "skills.json").read_text())
    column = {skill["id"]: n for n, skill in enumerate(skills)}
    meaning = json.loads((folder / "category_to_skills.json").read_text())
    labels: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _rows(folder / "categories.jsonl"):
        if row["category"] in meaning:
            labels.setdefault((row["source"], row["server"]), row)
    number = {key: n for n, key in enumerate(labels)}
    tools = [t for t in _rows(folder / "catalogue.jsonl") if (t["source"], t["server"]) in number]
    of_tools = [number[t["source"], t["server"]] for t in tools]
    phrases = list(_phrases(skills))
    described = [(row["server_title"], row["server_description"]) for row in labels.values()]
    texts = [_tool_text(tool) for tool in tools]
    texts += [make_text(title or "", words or "") for title, words in described]
    texts += [text for _, text in phrases]
    right = np.zeros((len(labels), len(skills)), np.float32)
    for n, row in enumerate(labels.values()):
        right[n, [column[skill] for skill in meaning[row["category"]]]] = 1
    of_phrases = np.eye(len(skills), dtype=np.float32)[[column[skill] for skill, _ in phrases]]
    sizes = np.bincount(of_tools, minlength=len(labels))
    return Examples(
        texts,
        np.concatenate([right[of_tools], right, of_phrases]),
        np.concatenate(
            [
                1 / np.sqrt(sizes[of_tools]),
                np.full(len(labels), SERVER_TEXT),
                np.full(len(phrases), PHRASE),
            ]
        ).astype(np.float32),
        np.concatenate([of_tools, np.arange(len(labels)), np.full(len(phrases), -1)]).astype(int),
        len(tools),
        skills,
        [make_text(title or "") for title, _ in described],
    )


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _tool_text(tool: dict[str, Any]) -> ToolText:
    schema = tool.get("input_schema") or {}
    parameters = " ".join(schema.get("properties") or {})
    return make_text(tool["name"], tool["description"] or "", parameters)


def _phrases(skills: list[dict[str, str]]) -> Any:
    """Yield (skill, text): each phrase as a name and as a description, and the skill's words."""
    for skill in skills:
        yield skill["id"], make_text(skill["name"], skill["description"])
    for line in PHRASES.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            skill, _, phrases = line.partition(":")
            for phrase in phrases.split(";"):
                yield skill, make_text(phrase.strip())
                yield skill, make_text("", phrase.strip())


class Sparse:
    """A sparse matrix with something in every row, and its products with dense ones."""

    def __init__(self, rows: list[dict[int, float]], width: int) -> None:
        self._shape = len(rows), width
        lengths = [len(row) for row in rows]
        self._columns = np.fromiter((c for row in rows for c in row), int, sum(lengths))
        values = (v for row in rows for v in row.values())
        self._values = np.fromiter(values, np.float32, sum(lengths))[:, None]
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        order = np.argsort(self._columns, kind="stable")
        self._used, self._used_starts = np.unique(self._columns[order], return_index=True)
        self._rows = np.repeat(np.arange(len(rows)), lengths)[order]
        self._by_column = self._values[order]

    def __matmul__(self, dense: np.ndarray) -> np.ndarray:
        return np.add.reduceat(dense[self._columns] * self._values, self._starts, axis=0)

    def transposed_times(self, dense: np.ndarray) -> np.ndarray:
        found = np.zeros((self._shape[1], dense.shape[1]), np.float32)
        products = dense[self._rows] * self._by_column
        found[self._used] = np.add.reduceat(products, self._used_starts, axis=0)
        return found


class Dense(np.ndarray):
    """A dense matrix with the products that `fit` needs."""

    def transposed_times(self, dense: np.ndarray) -> np.ndarray:
        return np.asarray(self).T @ dense


def fit(inputs: Any, width: int, right: Any, hints: Any, weights: Any, how: tuple) -> np.ndarray:
    """Train a softmax with Adam on partial labels: −log of the share of all right skills, and
    towards the hints, which choose among these."""
    steps, rate, decay = how
    weights = (weights / weights.sum())[:, None]
    found = np.zeros((width, right.shape[1]), np.float32)
    first, second = np.zeros_like(found), np.zeros_like(found)
    for step in range(1, steps + 1):
        shares = np.exp(normalize(np.asarray(inputs @ found)))
        among = shares * right
        among /= among.sum(axis=1, keepdims=True) + 1e-9
        target = (1 - TOWARDS_ZERO_SHOT) * among + TOWARDS_ZERO_SHOT * hints
        slope = inputs.transposed_times((shares - target) * weights) + decay * found
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope * slope
        size = np.sqrt(second / (1 - 0.99**step)) + 1e-8
        found -= rate * (first / (1 - 0.9**step)) / size
    return found


class Trainer:
    """The examples as numbers, and models of any part of them."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        counts = Counter(term for text in examples.texts for term in set(text.terms()))
        chosen = [(term, n) for term, n in counts.most_common(MOST_TERMS) if n >= 3]
        self.terms = [term for term, _ in chosen]
        total = len(examples.texts)
        rarity = [0.0, *(np.log(1 + total / n) for _, n in chosen)]
        self.rarity = np.array(rarity, np.float16).astype(np.float32)
        self._known = {term: n for n, term in enumerate(self.terms, 1)}
        table = StaticTable.load()
        self.vectors = table.embed([text.embedded for text in examples.texts])
        described = [f"{one['name']}. {one['description']}" for one in examples.skills]
        nearness = self.vectors @ table.embed(described).T
        hints = np.exp(nearness / ZERO_SHOT) * examples.right
        self._hints = hints / hints.sum(axis=1, keepdims=True)
        self._rows = [self.weigh(text) for text in examples.texts]
        self.titles = [self.weigh(text) for text in examples.titles]
        self.title_vectors = table.embed([text.embedded for text in examples.titles])

    def weigh(self, text: ToolText) -> dict[int, float]:
        return {0: 1.0, **weigh_terms(text, self._known, self.rarity)}

    def fit(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Train both models on the chosen examples."""
        examples, width = self.examples, len(self.terms) + 1
        given = examples.right[chosen], self._hints[chosen], examples.weights[chosen]
        sparse = Sparse([self._rows[n] for n in chosen], width)
        dense = _with_constant(self.vectors[chosen]).view(Dense)
        of_terms = fit(sparse, width, *given, (40, 0.1, 1e-4))
        return of_terms, fit(dense, dense.shape[1], *given, (50, 0.05, 3e-3))

    def judge(self, models: tuple, rows: list[dict[int, float]], vectors: np.ndarray) -> np.ndarray:
        of_terms, of_vector = models
        by_terms = normalize(np.asarray(Sparse(rows, len(self.terms) + 1) @ of_terms))
        by_vector = normalize(_with_constant(vectors) @ of_vector)
        return average(by_terms, by_vector)

    def cross_validate(self) -> tuple[np.ndarray, np.ndarray]:
        """Judge every text by models that saw nothing of its server: texts, and titles alone."""
        examples = self.examples
        fold = np.random.default_rng(0).integers(0, FOLDS, examples.servers)
        of_text = np.where(examples.server >= 0, fold[examples.server], -1)
        found = np.zeros_like(examples.right)
        titles = np.zeros((examples.servers, examples.right.shape[1]), np.float32)
        for number in range(FOLDS):
            models = self.fit(np.flatnonzero(of_text != number))
            held = np.flatnonzero(of_text == number)
            rows = [self._rows[n] for n in held]
            found[held] = self.judge(models, rows, self.vectors[held])
            held = np.flatnonzero(fold == number)
            rows = [self.titles[n] for n in held]
            titles[held] = self.judge(models, rows, self.title_vectors[held])
        return found, titles


def _with_constant(vectors: np.ndarray) -> np.ndarray:
    ones = np.ones((len(vectors), 1), np.float32)
    return np.concatenate([VECTOR_SCALE * vectors, ones], axis=1)


class Measured(NamedTuple):
    """How good verdicts are: the first right, one of three right, and those of 0.5 or more."""

    top_1: float
    top_3: float
    coverage: float
    right: float
    confidence: float


def measure(verdicts: np.ndarray, right: np.ndarray, weights: np.ndarray) -> Measured:
    """Measure verdicts; each counts with its weight."""
    weights = weights / weights.sum()
    shares = np.exp(verdicts)
    order = np.argsort(-shares, axis=1)
    first = right[np.arange(len(right)), order[:, 0]]
    third = np.take_along_axis(right, order[:, :3], axis=1).max(axis=1)
    best = shares.max(axis=1)
    covered = weights * (best >= 0.5)
    return Measured(
        float(weights @ first),
        float(weights @ third),
        float(covered.sum()),
        float(covered @ first / covered.sum()),
        float(weights @ best),
    )


def calibrate(verdicts: np.ndarray, right: np.ndarray) -> float:
    """Return the least temperature at which those that are sure enough are right often enough.

    A label stands for several skills, so that the share of one may be less than how often it is
    among the right ones.
    """
    alike = np.ones(len(right))
    for temperature in np.arange(0.4, 2.0, 0.02):
        if measure(normalize(verdicts / temperature), right, alike).right >= RIGHT:
            return float(temperature)
    return 2.0


class Validated(NamedTuple):
    """What cross-validation found: verdicts of each kind, and the temperature of pooled ones."""

    verdicts: dict[str, np.ndarray]
    right: np.ndarray
    by_server: np.ndarray
    """A weight for each tool, so that servers count alike."""
    temperature: float


def validate(trainer: Trainer) -> Validated:
    """Cross-validate, pool over servers as the service does, and calibrate."""
    examples = trainer.examples
    found, titles = trainer.cross_validate()
    count, of_tools = examples.tools, examples.server[: examples.tools]
    own, of_servers = found[:count], found[count : count + examples.servers]
    sizes = np.bincount(of_tools, minlength=examples.servers)
    mean = np.zeros_like(of_servers)
    np.add.at(mean, of_tools, own)
    mean /= np.maximum(sizes, 1)[:, None]
    verdicts = {
        ALONE: own,
        "pooled over its server": OWN * own + (1 - OWN) * mean[of_tools],
        "… with the server's title": mix(own, pool(mean, titles)[of_tools]),
        "… and description": mix(own, pool(mean, of_servers)[of_tools]),
    }
    right, weights = examples.right[:count], 1.0 / sizes[of_tools]
    temperature = calibrate(verdicts["… and description"], right)
    return Validated(verdicts, right, weights, temperature)


def table(found: Validated) -> list[tuple[str, Measured, Measured]]:
    """Return the table: a name, the figures by tool, and those where servers count alike."""
    rows = []
    for name, verdicts in found.verdicts.items():
        heat = 1.0 if name == ALONE else found.temperature
        calibrated = normalize(verdicts / heat)
        by_tool = measure(calibrated, found.right, np.ones(len(verdicts)))
        rows.append((name, by_tool, measure(calibrated, found.right, found.by_server)))
    return rows


def print_table(rows: list[tuple[str, Measured, Measured]]) -> None:
    heads = "top-1 / top-3, primary ≥ .5: coverage, right, mean confidence"
    print(f"| cross-validated by server | each tool counts: {heads} | each server counts |")
    print("|---|---|---|")
    for name, *both in rows:
        cells = (
            f"{m.top_1:.3f} / {m.top_3:.3f}, {m.coverage:.2f}, {m.right:.3f}, {m.confidence:.2f}"
            for m in both
        )
        print(f"| {name} | {' | '.join(cells)} |")


def write(trainer: Trainer, found: Validated, file: Path) -> None:
    """Train on everything and write the weights, as int8 with a scale for each skill."""
    of_terms, of_vector = trainer.fit(np.arange(len(trainer.examples.texts)))

    def quantize(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale = np.abs(weights).max(axis=0) / 127
        return np.round(weights / scale).astype(np.int8), scale.astype(np.float32)

    terms, terms_scale = quantize(of_terms)
    used = np.flatnonzero(np.abs(terms[1:]).max(axis=1) >= 4) + 1
    vector, vector_scale = quantize(of_vector)
    skills = trainer.examples.skills
    np.savez_compressed(
        file,
        table=_lines([MODEL]),
        skills=_lines([skill["id"] for skill in skills]),
        descriptions=_lines([skill["description"] for skill in skills]),
        temperature=np.float32(found.temperature),
        terms=_lines([trainer.terms[n - 1] for n in used]),
        rarity=trainer.rarity[[0, *used]].astype(np.float16),
        of_terms=terms[[0, *used]],
        of_terms_scale=terms_scale,
        of_vector=vector,
        of_vector_scale=vector_scale,
    )
    print(f"{file}: {file.stat().st_size:,} bytes, {len(used):,} terms")


def _lines(lines: list[str]) -> np.ndarray:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--write", action="store_true")
    given = options.parse_args()
    trainer = Trainer(read_examples(given.folder))
    found = validate(trainer)
    print_table(table(found))
    if given.write:
        import mcp_junction.skills

        folder = Path(mcp_junction.skills.__file__).with_name("data")
        folder.mkdir(exist_ok=True)
        write(trainer, found, folder / WEIGHTS)


if __name__ == "__main__":
    sys.exit(main())
