"""Requests read in one pass: the same frames and the same refusals as read in two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.json_texts import objects, payloads, scalars, strings, values
from tests.protocol.mutations import mutated

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames, requests
from mcp_junction.protocol.requests import ClientRequest

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":1.0}}}'
NAMES = st.sampled_from(
    ['"jsonrpc"', '"id"', '"method"', '"params"', '"result"', '"\\u0069d"', '"x"']
)
USUAL = st.sampled_from(['"2.0"', "1", '"tools/call"', "{}", '{"name":"a","name":"b"}'])
ENVELOPES = objects(USUAL | values, NAMES)


def read(decode, data):
    """What is made of a frame, and of its params; or what is said to be wrong with it."""
    try:
        frame = decode(data)
        said = bytes(frame.id), frame.method, bytes(frame.result), bytes(frame.error)
        if not frame.method or not frame.id:
            return *said, bytes(frame.params)
        return *said, {name: bytes(raw) for name, raw in frame.members().items()}
    except FrameError as error:
        return error.code, error.message, error.frame_id


def test_a_plain_request_is_read_in_one_pass():
    frame = requests.decode(CALL)
    assert isinstance(frame, ClientRequest)
    assert frame.is_request
    assert {name: bytes(raw) for name, raw in frame.members().items()} == {
        "name": b'"a"',
        "arguments": b'{"b":1.0}',
    }


@pytest.mark.bulk
@pytest.mark.req("S-02")
def test_mutated_frames_are_read_alike():
    for data in mutated(seed=4, count=5_000):
        assert read(requests.decode, data) == read(frames.decode, data), data


@given(ENVELOPES)
def test_envelopes_of_all_kinds_are_read_alike(text):
    data = text.encode()
    assert read(requests.decode, data) == read(frames.decode, data)


@given(params=payloads | values, frame_id=scalars, method=strings)
def test_params_of_all_kinds_are_read_alike(params, frame_id, method):
    text = f'{{"jsonrpc":"2.0","id":{frame_id},"method":{method},"params":{params}}}'
    data = text.encode()
    assert read(requests.decode, data) == read(frames.decode, data)


@pytest.mark.parametrize(
    "data",
    [
        CALL.replace(b'"id":1', b'"id":1,"id":2'),
        CALL.replace(b'"name":"a"', b'"name":"a","name":"b"'),
        CALL.replace(b'"name":"a"', b'"name":"a","n\\u0061me":"b"'),
        CALL.replace(b'"id":1', b'"id":null'),
        CALL.replace(b'"id":1', b'"id":[]'),
        CALL.replace(b'"id":1', b'"id":"%b"' % (b"x" * 2000)),
        CALL.replace(b'"tools/call"', b'""'),
        CALL.replace(b"2.0", b"1.0"),
        CALL.replace(b'{"b":1.0}', b"[" * 70 + b"]" * 70),
        CALL.replace(b'"a"', b'"\xff"'),
        CALL.replace(b'"a"', b'"' + b"a" * 5000 + b'"'),
        CALL.replace(b'{"b":1.0}', b'{"b":%b}' % (b"1" * 4400)),
        CALL.replace(b",", b" ,\n "),
        CALL[:-1],
        b"[%b]" % CALL,
    ],
)
def test_what_is_not_plain_is_left_to_the_other_way(data):
    assert read(requests.decode, data) == read(frames.decode, data)
