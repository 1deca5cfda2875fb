"""Whether a tool's result says that the tool failed, read without reading the rest."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_junction.protocol.envelope import is_tool_error

FILLER = "x" * 10_000


@pytest.mark.parametrize("kind", [bytes, Raw])
@pytest.mark.parametrize("filler", ["", FILLER])
@pytest.mark.parametrize(
    ("result", "is_error"),
    [
        ({"content": []}, False),
        ({"content": [], "isError": False}, False),
        ({"content": [], "isError": True}, True),
        ({"isError": True, "content": []}, True),
        ({"isError": False, "content": [], "_meta": {"isError": True}}, False),
        ({"content": [{"type": "text", "text": '{"isError":true}'}]}, False),
        ({"content": [], '"isError': True}, False),
        ({"content": [], "structuredContent": {"isError": True}}, False),
        ({"content": [], "isError": "true"}, False),
        ({"content": [], "isError": None}, False),
    ],
)
def test_only_the_results_own_member_counts(kind, filler, result, is_error):
    for text in (
        json.dumps(result | {"_filler": filler}),
        json.dumps({"_filler": filler} | result),
        json.dumps({"_filler": filler} | result, indent=2) + "\n",
        json.dumps({"_filler": filler} | result, separators=(",", ":")),
    ):
        assert is_tool_error(kind(text.encode())) is is_error


@pytest.mark.parametrize("filler", ["", FILLER])
def test_of_two_members_the_last_counts(filler):
    for first, last in ((b"true", b"false"), (b"false", b"true")):
        text = b'{"isError":%b,"_":"%b","isError":%b}' % (first, filler.encode(), last)
        assert is_tool_error(text) is (last == b"true")


@pytest.mark.parametrize("text", [b"", b"[]", b'"isError"', b"null", b"1", b'{"isError":tru'])
def test_what_is_no_result_is_no_error(text):
    assert is_tool_error(text) is False


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["isError", '"isError":true}', ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["isError", "a", '"isError', '\\"isError"']), inner)
    ),
)


@given(
    st.dictionaries(st.sampled_from(["content", "isError", '"isError', "z"]), _JSON),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
)
def test_it_is_what_a_parser_says(result, is_long, separators):
    whole = ({"_": FILLER} if is_long else {}) | result
    text = json.dumps(whole, separators=separators).encode()
    assert is_tool_error(text) is (result.get("isError") is True)
