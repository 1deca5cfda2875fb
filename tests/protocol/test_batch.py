"""Batches, taken apart and put together."""

import json

import pytest

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol import requests as batch
from mcp_junction.protocol.versions import BATCH_VERSIONS, INVALID_REQUEST, PARSE_ERROR

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
NOTE = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a": 1.0}}'


def refusal(data: bytes) -> FrameError:
    with pytest.raises(FrameError) as caught:
        batch.split_batch(data)
    return caught.value


def test_only_the_two_oldest_versions_have_batches():
    assert BATCH_VERSIONS == ("2024-11-05", "2025-03-26")


def test_the_messages_come_in_their_order_each_as_if_alone():
    parts = batch.split_batch(b" [ " + PING + b" ,\n" + NOTE + b"," + PING + b"]\n")
    assert parts == [frames.decode(PING), frames.decode(NOTE), frames.decode(PING)]
    assert bytes(parts[1].params) == b'{"a": 1.0}'


def test_what_is_wrong_with_one_spoils_no_other():
    wrong = [b"7", b"null", b"[]", b"{}", b'{"id":9,"method":5}', b'{"id":1,"id":2,"method":"m"}']
    parts = batch.split_batch(b"[" + b",".join([*wrong, PING]) + b"]")
    assert [part.code for part in parts[:-1]] == [INVALID_REQUEST] * len(wrong)
    assert parts[4].frame_id == b"9"
    assert parts[-1] == frames.decode(PING)


def test_one_that_is_too_deep_or_not_utf_8_spoils_no_other():
    deep = b'{"id":3,"method":"m","params":' + b"[" * 70 + b"]" * 70 + b"}"
    bad = b'{"id":4,"method":"m","params":["\xff"]}'
    first, second, third = batch.split_batch(b"[" + deep + b"," + bad + b"," + PING + b"]")
    assert (first.code, first.frame_id) == (PARSE_ERROR, b"3")
    assert (second.code, second.frame_id) == (PARSE_ERROR, b"4")
    assert third == frames.decode(PING)


def test_an_initialize_is_not_part_of_a_batch():
    (error,) = batch.split_batch(b'[{"jsonrpc":"2.0","id":5,"method":"initialize","params":{}}]')
    assert (error.code, error.frame_id) == (INVALID_REQUEST, b"5")
    assert "initialize" in error.message


@pytest.mark.parametrize("text", [b"[]", b" [ ] "])
def test_an_empty_batch_is_an_invalid_request(text):
    assert refusal(text).code == INVALID_REQUEST


@pytest.mark.parametrize("text", [b"[", b"[" + PING, b"[" + PING + b",]", b"[]x", b"[" * 100_000])
def test_an_array_that_does_not_end_is_a_parse_error(text):
    assert refusal(text).code == PARSE_ERROR


def test_there_is_a_bound_on_the_messages():
    most = b"[" + b",".join([PING] * batch.MAX_BATCH) + b"]"
    assert len(batch.split_batch(most)) == batch.MAX_BATCH
    error = refusal(b"[" + b",".join([PING] * (batch.MAX_BATCH + 1)) + b"]")
    assert error.code == INVALID_REQUEST
    assert str(batch.MAX_BATCH) in error.message


def test_a_body_full_of_commas_is_not_taken_apart():
    assert refusal(b"[" + b"1," * 2_000_000 + b"1]").code == INVALID_REQUEST


def test_answers_are_one_line():
    joined = batch.join_answers([b'{"id":1}\n', b'{"id":2}\n'])
    assert json.loads(joined) == [{"id": 1}, {"id": 2}]
    assert joined.count(b"\n") == 1


@pytest.mark.parametrize("text", [b"[", b" \r\n\t[1]", b"[]"])
def test_an_array_is_told_from_an_object(text):
    assert frames.is_batch(text)
    assert not frames.is_batch(b'{"a":' + text + b"}")
