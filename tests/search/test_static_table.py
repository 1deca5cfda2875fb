"""Texts to pieces and vectors: as the reference does it, whatever the text, off the network."""

import hashlib
import subprocess
import sys

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.search.static_table import DIMENSIONS, MODEL, StaticTable
from mcp_junction.search.wordpiece import UNKNOWN, WordPiece, vocabulary

SPLIT = WordPiece()
TABLE = StaticTable.load()


def pieces(text):
    return [vocabulary()[number] for number in SPLIT(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # as the reference tokenizer of bert-base-uncased splits them
        ("Create a GitHub issue", ["create", "a", "gi", "##th", "##ub", "issue"]),
        ("unaffable", ["una", "##ffa", "##ble"]),
        ("Café naïve", ["cafe", "naive"]),
        ("don't stop, now!", ["don", "'", "t", "stop", ",", "now", "!"]),
        ("日本 ab", ["日", "本", "ab"]),
        ("a\x00b\tc\u00a0d\u200d", ["ab", "c", "d"]),
        ("x" * 101 + " y", ["[UNK]", "y"]),
        ("😀 ok", ["[UNK]", "ok"]),
        ("", []),
    ],
)
def test_pieces_are_those_of_the_reference(text, expected):
    assert pieces(text) == expected


@given(st.text())
def test_every_text_has_pieces_and_a_vector_of_length_one_or_none(text):
    numbers = SPLIT(text)
    (vector,) = TABLE.embed([text])
    assert vector.dtype == numpy.float32
    length = float(numpy.linalg.norm(vector))
    assert length == pytest.approx(1, abs=1e-5) or (length == 0 and set(numbers) <= {UNKNOWN})


def test_a_surrogate_is_left_out():
    assert pieces("a \ud800 b") == ["a", "b"]


def test_the_models_id_is_that_of_its_files():
    assert len(vocabulary()) == len(TABLE.rows) == len(TABLE.scales) == 30_522
    content = TABLE.rows.tobytes() + TABLE.scales.tobytes()
    assert f"static-{DIMENSIONS}-{hashlib.sha256(content).hexdigest()[:8]}" == MODEL


def test_what_means_the_same_is_near():
    query, near, far = TABLE.embed(["send an email", "mail a message", "rain and wind"])
    assert query @ near > query @ far + 0.2


def test_a_vector_does_not_depend_on_its_neighbours():
    assert (
        TABLE.embed(["short", "a much longer text " * 50])[0] == TABLE.embed(["short"])[0]
    ).all()
    assert TABLE.embed([]).shape == (0, DIMENSIONS)


def test_importing_it_does_not_import_numpy():
    program = "import sys, mcp_junction.search.static_table; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
