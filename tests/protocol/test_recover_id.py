"""The id of a frame that cannot be read: the envelope's own, or none."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol import json_texts

from mcp_junction.protocol.frames import has_method, recover_id
from mcp_junction.protocol.lines import LineReader, Overlong

FILLER = b"x" * 10_000


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize("frame_id", [b"0", b"12", b"-3", b'"a"', b'"junction-1"', b'""', rb'"\n"'])
def test_the_id_is_found_at_the_head_or_at_the_end(frame_id):
    assert (
        recover_id(b'{"jsonrpc":"2.0","id":%b,"result":{"t":"%b' % (frame_id, FILLER)) == frame_id
    )
    tail = b'%b"},"jsonrpc":"2.0","id":%b}' % (FILLER, frame_id)
    assert recover_id(b'{"result":{"t":"' + tail) == frame_id
    swapped = b'%b"},"id":%b,"jsonrpc":"2.0"} \r' % (FILLER, frame_id)
    assert recover_id(b'{"result":{"t":"' + swapped) == frame_id


@pytest.mark.req("R-ANSWER")
def test_ids_inside_the_payload_are_not_taken_for_the_envelopes():
    payload = b'{"items":[{"id":5,"t":"\\"id\\":6,"},{"id":"x"}],"bad":NaN}'
    assert recover_id(b'{"result":%b,"jsonrpc":"2.0","id":9}' % payload) == b"9"
    assert recover_id(b'{"result":%b,"jsonrpc":"2.0"}' % payload) is None
    assert recover_id(b'{"result":{"id":5,"t":"%b"},"x":{"id":6}}' % FILLER) is None


@pytest.mark.parametrize(
    "value", [b"01", b"1.5", b"1e3", b"12345678901234567890", b"null", b'"\xff"', b'"\\q"', b"{}"]
)
def test_what_could_not_be_sent_back_is_not_recovered(value):
    assert recover_id(b'{"jsonrpc":"2.0","id":%b,"method":"m","params":{"a":NaN}}' % value) is None


def test_the_members_of_a_batch_have_no_id_to_answer():
    assert recover_id(b'[{"id":1,"method":"a"},{"id":2,"method":"b"}]') is None


def test_a_string_that_says_id_is_not_the_id():
    assert recover_id(b'{"method":"id","params":{"a":NaN},"id":4}') == b"4"
    assert recover_id(b'{"method":"\\"id\\":3,","params":{"a":NaN},"id":4}') == b"4"


@given(st.binary(max_size=200))
def test_what_is_recovered_from_any_bytes_is_a_json_scalar(data):
    for text in (data, b'{"id":' + data, b'{"id":"' + data + b'"}'):
        found = recover_id(text)
        if found is not None:
            assert isinstance(json.loads(found), int | str)


@settings(max_examples=30)
@given(json_texts.payloads, st.sampled_from([b"1", b'"a"']))
def test_a_cut_frame_gives_its_own_id_or_none(payload, frame_id):
    whole = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (frame_id, payload.encode())
    for end in range(len(whole)):
        assert recover_id(whole[:end]) in (frame_id, None)


def test_a_request_is_told_from_an_answer():
    assert has_method(b'{"method":"sampling/createMessage","params":{"a":NaN},"id":1}')
    assert has_method(b'{"jsonrpc":"2.0","id":1, "method" : "m","params":{"t":"%b' % FILLER)
    assert not has_method(b'{"jsonrpc":"2.0","id":1,"result":{"method":"GET","a":NaN}}')
    assert not has_method(b'{"jsonrpc":"2.0","id":1,"result":"method"')


@pytest.mark.parametrize("shape", [b'{"id":5,"result":"%b"}', b'{"result":"%b","id":5}'])
def test_what_is_left_of_an_overlong_line_is_enough(shape):
    (line,) = LineReader(100).feed(shape % FILLER + b"\n")
    assert isinstance(line, Overlong)
    assert recover_id(line.head + line.tail) == b"5"


def test_many_escaped_quotes_are_read_once():
    """Each is a place where a careless pattern would begin again."""
    assert recover_id(b'{"a":"' + b'\\"' * 2045) is None
