"""The envelope of results: how one is dressed, and how its type is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.protocol import envelope
from mcp_junction.protocol.envelope import ResultEnvelope

SERVER = b'{"name":"junction","version":"1"}'
STAMP = "io.modelcontextprotocol/serverInfo"
OURS = ("resultType", "ttlMs", "cacheScope")
MEMBERS = st.dictionaries(
    st.sampled_from(["content", "isError", "_meta", "structuredContent", *OURS]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=5,
    ),
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " : ")])


@given(result=MEMBERS, separators=SEPARATORS)
def test_a_dressed_result_says_what_is_ours_and_keeps_the_rest(result, separators):
    text = json.dumps(result, separators=separators).encode()
    pairs = json.loads(
        envelope.to_stateless_result(text, ResultEnvelope(SERVER)), object_pairs_hook=list
    )
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), "no member is there twice"
    dressed = json.loads(envelope.to_stateless_result(text, ResultEnvelope(SERVER)))
    assert dressed.pop("resultType") == "complete"
    meta = dressed.pop("_meta")
    theirs = result.pop("_meta", None)
    theirs = theirs if isinstance(theirs, dict) else {}
    assert meta == {STAMP: json.loads(SERVER), **theirs}
    assert dressed == {name: value for name, value in result.items() if name not in OURS}


def test_how_long_a_result_keeps_is_said_where_that_is_wanted():
    kept = ResultEnvelope(SERVER, b'"ttlMs":0,"cacheScope":"private",')
    for text in (b'{"contents":[]}', b'{"contents":[],"_meta":{"a":1}}', b"{}"):
        dressed = json.loads(envelope.to_stateless_result(text, kept))
        assert (dressed["ttlMs"], dressed["cacheScope"]) == (0, "private")


@pytest.mark.parametrize("text", [b"[]", b"null", b'"x"', b"7"])
def test_what_is_no_object_cannot_be_dressed_and_stays(text):
    assert envelope.to_stateless_result(text, ResultEnvelope(SERVER)) == text


@pytest.mark.parametrize("kind", ["complete", "input_required", "task", "something/else"])
@pytest.mark.parametrize(
    "text",
    [
        '{"resultType":"%s","content":[]}',
        '{"content":[],"resultType":"%s"}',
        '{"content":[],"resultType":"%s","isError":false}',
        '{ "content" : [] , "resultType" : "%s" }',
        '{"resultType":"%s"}',
        '{"content":[{"resultType":"complete"}],"resultType":"%s"}',
        r'{"content":",\"resultType\":\"complete\"}","resultType":"%s"}',
        '{"structuredContent":{"a":1,"resultType":"complete"},"resultType":"%s","x":{}}',
    ],
)
def test_the_type_of_a_result_is_told_wherever_it_stands(text, kind):
    assert envelope.result_type((text % kind).encode()) == kind


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"content":[]}',
        b'{"content":[{"a":1,"resultType":"input_required"}]}',
        b'{"resultType":7}',
        b"[]",
    ],
)
def test_a_result_that_says_no_type_is_complete(text):
    assert envelope.result_type(text) == "complete"


@given(result=MEMBERS, separators=SEPARATORS, is_first=st.booleans())
def test_an_undressed_result_has_nothing_of_ours_and_keeps_the_rest(result, separators, is_first):
    rest = {name: value for name, value in result.items() if name not in OURS}
    typed = {"resultType": "complete"}
    result = {**typed, **result, **typed} if is_first else {**rest, **typed}
    text = json.dumps(result, separators=separators).encode()
    assert json.loads(envelope.to_handshake_result(text)) == rest


@pytest.mark.parametrize("meta", [{}, {"vendor/x": 1}])
def test_who_answered_is_taken_off_with_the_dress(meta):
    dressed = {"resultType": "complete", "content": [], "_meta": {STAMP: {}, **meta}}
    undressed = json.loads(envelope.to_handshake_result(json.dumps(dressed).encode()))
    assert undressed == ({"content": [], "_meta": meta} if meta else {"content": []})


@pytest.mark.parametrize("text", [b"[]", b"null", b'"x"', b"7", b"{}"])
def test_what_has_no_members_is_undressed_already(text):
    assert envelope.to_handshake_result(text) == text
