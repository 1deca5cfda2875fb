"""Texts to vectors: of which words, and how long."""

import json

import pytest

from mcp_junction.search.static_table import mean, pack_rows, stack_vectors, to_floats
from mcp_junction.skills.features import read_tool
from mcp_junction.skills.offline import embed_words


def nearness(*texts):
    first, *rest = map(to_floats, embed_words(texts))
    return [sum(a * b for a, b in zip(first, other, strict=True)) for other in rest]


def test_a_vector_is_little_endian_float32_of_length_one():
    vectors = embed_words(["send an email", "weather forecast"])
    assert [len(one) for one in vectors] == [1024, 1024]
    for one in vectors:
        assert sum(number**2 for number in to_floats(one)) == pytest.approx(1, abs=1e-5)
    assert pack_rows(stack_vectors(vectors)) == vectors


def test_what_is_about_the_same_is_near():
    same, near, far = nearness("send an email", "send an email", "mail a message", "rain and wind")
    assert same == pytest.approx(1, abs=1e-5)
    assert near > far + 0.2


def test_a_vector_does_not_depend_on_its_neighbours():
    alone = embed_words(["short"])
    assert embed_words(["short", "a much longer text " * 50])[:1] == alone


def test_no_words_have_no_direction_and_no_texts_no_vectors():
    assert to_floats(embed_words([""])[0]) == [0.0] * 256
    assert embed_words([]) == []


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
    assert read_tool(name, definition).embedded == text
