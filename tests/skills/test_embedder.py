"""Texts to vectors: of which words, how long, and never by way of the network."""

import json
import subprocess
import sys

import pytest

from mcp_junction.skills.classifier import tool_text
from mcp_junction.skills.embedder import WordVectors, mean, pack_rows, stack_vectors, to_floats


def nearness(*texts):
    first, *rest = map(to_floats, WordVectors()(texts))
    return [sum(a * b for a, b in zip(first, other, strict=True)) for other in rest]


def test_a_vector_is_little_endian_float32_of_length_one():
    vectors = WordVectors()(["send an email", "weather forecast"])
    assert [len(one) for one in vectors] == [1024, 1024]
    for one in vectors:
        assert sum(number**2 for number in to_floats(one)) == pytest.approx(1, abs=1e-5)
    assert pack_rows(stack_vectors(vectors)) == vectors


def test_what_is_about_the_same_is_near():
    same, near, far = nearness("send an email", "send an email", "mail a message", "rain and wind")
    assert same == pytest.approx(1, abs=1e-5)
    assert near > far + 0.2


def test_a_vector_does_not_depend_on_its_neighbours():
    alone = WordVectors()(["short"])
    assert WordVectors()(["short", "a much longer text " * 50])[:1] == alone


def test_no_words_have_no_direction_and_no_texts_no_vectors():
    assert to_floats(WordVectors()([""])[0]) == [0.0] * 256
    assert WordVectors()([]) == []


def test_a_mean_is_taken_number_by_number():
    one, two = (pack_rows(stack_vectors([bytes(4), bytes(4)]))[0], b"\0\0\x80?")
    assert to_floats(mean([one, two])) == [0.5]


@pytest.mark.parametrize(
    ("name", "definition", "text"),
    [
        ("send_email", b'{"description": "Sends it."}', "send email. Sends it."),
        ("createNewIssue", b'{"title": "New", "description": "x"}', "create New Issue. New x"),
        ("a.b-c/d", b"{}", "a b c d. "),
        ("x", b'{"description": 7, "title": null}', "x. "),
        ("x", b"not JSON", "x. "),
        ("x", json.dumps({"description": "y" * 10_000}).encode(), "x. " + "y" * 200),
    ],
)
def test_a_tool_is_its_name_in_words_and_the_beginning_of_what_is_said_of_it(
    name, definition, text
):
    assert tool_text(name, definition) == text


def test_nothing_that_could_download_is_loaded_and_nothing_is_logged():
    """The package of the vectors brings a client for downloads along; none of it is imported."""
    program = (
        "import sys, logging, socket\n"
        "def refuse(*_, **__): raise AssertionError('the network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from mcp_junction.skills.embedder import WordVectors\n"
        "assert 'numpy' not in sys.modules\n"
        "WordVectors()(['hello'])\n"
        "assert not logging.getLogger().handlers\n"
        "print({'wordllama', 'requests', 'pydantic', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (b"set()", b"")
