"""The decoder and the frames it makes: what comes in is kept, and says one thing."""

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.protocol import json_texts

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.requests import read_answer
from mcp_junction.protocol.versions import INVALID_REQUEST, PARSE_ERROR


def envelope(**members: str) -> bytes:
    """An envelope from JSON texts."""
    inside = ",".join(f'"{name}":{text}' for name, text in members.items())
    return f'{{"jsonrpc":"2.0",{inside}}}'.encode()


def refusal(data: bytes) -> FrameError:
    with pytest.raises(FrameError) as caught:
        frames.decode(data)
    return caught.value


# -- nothing is lost


@pytest.mark.req("FR-007", "FR-008")
@given(json_texts.payloads)
def test_payloads_are_kept_byte_for_byte(text):
    raw = text.encode()
    assert bytes(frames.decode(envelope(id="1", method='"m"', params=text)).params) == raw
    assert bytes(frames.decode(envelope(id="1", result=text)).result) == raw
    assert bytes(frames.decode(envelope(id="1", error=text)).error) == raw


@pytest.mark.req("FR-007", "FR-008")
@pytest.mark.parametrize("number", ["1.0", "1e5", "-0", "-0.0", "0.10", "1E+02", str(10**400)])
def test_a_number_keeps_its_spelling_through_decoder_and_encoder(number):
    frame = frames.decode(envelope(id="1", result=f'{{"n":{number},"unknown":[{number}]}}'))
    sent = encode.result(b"7", frame.result)
    assert sent == b'{"jsonrpc":"2.0","id":7,"result":{"n":%b,"unknown":[%b]}}\n' % (
        (number.encode(),) * 2
    )


@pytest.mark.req("FR-007")
@given(json_texts.objects(json_texts.values, st.integers(0, 9).map(lambda n: f'"k{n}"')))
def test_members_read_one_level_deep_are_each_kept_as_written(text):
    found = frames.members(text.encode())
    pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    assert list(found) == list(dict(pairs)), "order is kept"
    for raw in found.values():
        assert bytes(raw).decode() in text
        assert bytes(raw).strip() == bytes(raw)
    assert frames.members(encode.dumps(found)) == found


def test_members_of_nothing_are_none():
    assert frames.members(b"") == {}
    assert frames.members(frames.NOTHING) == {}


@pytest.mark.parametrize("text", [b"[]", b"1", b'"x"', b"null", b"{", b'{"a":1', b"{]"])
def test_members_of_what_is_no_object_are_refused(text):
    with pytest.raises(FrameError):
        frames.members(text)


@pytest.mark.parametrize(
    ("raw", "text"), [(b'"a\\u00e9"', "aé"), (b"1", None), (b"null", None), (None, None)]
)
def test_only_a_json_string_is_text(raw, text):
    assert frames.text(raw) == text


# -- what a frame is


def test_a_frame_with_method_and_id_is_a_request():
    frame = frames.decode(envelope(id="1", method='"tools/list"'))
    assert (frame.is_request, bool(frame.method), bool(frame.id)) == (True, True, True)


def test_a_frame_with_a_method_and_no_id_is_a_notification():
    frame = frames.decode(envelope(method='"notifications/initialized"'))
    assert (frame.is_request, bool(frame.method), bool(frame.id)) == (False, True, False)


@pytest.mark.parametrize("member", ["result", "error"])
def test_a_frame_with_a_result_or_an_error_is_an_answer(member):
    frame = frames.decode(envelope(**{"id": "1", member: "{}"}))
    assert (frame.is_request, bool(frame.method), bool(frame.id)) == (False, False, True)


@pytest.mark.parametrize("text", [b"{}", b'{"id":1}', b'{"jsonrpc":"2.0","id":1,"params":{}}'])
def test_a_frame_that_says_nothing_is_refused(text):
    assert refusal(text).code == INVALID_REQUEST


@pytest.mark.parametrize("params", ["1", '"x"', "true", "-1"])
def test_params_that_are_no_object_or_array_are_refused_with_the_id(params):
    error = refusal(envelope(id="7", method='"m"', params=params))
    assert (error.code, error.frame_id) == (INVALID_REQUEST, b"7")


def test_null_for_params_means_none():
    assert not frames.decode(envelope(id="1", method='"m"', params="null")).params


def test_null_for_the_error_beside_a_result_means_none():
    frame = frames.decode(envelope(id="1", result='{"a":1}', error="null"))
    assert bytes(frame.result) == b'{"a":1}'
    assert not frame.error


@pytest.mark.parametrize("wrong", ["null", '"boom"', "-32000", "[]"])
def test_an_error_that_is_no_object_is_refused_with_the_id(wrong):
    error = refusal(envelope(id="7", error=wrong))
    assert (error.code, error.frame_id) == (INVALID_REQUEST, b"7")


@pytest.mark.parametrize(
    "text", [b"", b" ", b"{", b"nonsense", b'{"id":1,}', b"{'id':1}", b'{"id":1,"method":"m"} x']
)
def test_what_is_not_json_is_a_parse_error(text):
    assert refusal(text).code == PARSE_ERROR


@pytest.mark.parametrize("text", [b"5", b"null", b'"x"', b'{"id":1,"method":5}'])
def test_json_that_is_no_message_is_an_invalid_request(text):
    assert refusal(text).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "text", [b"[]", b' [{"jsonrpc":"2.0","id":1,"method":"ping"}]', b'[{"id":1},{"id":2}]']
)
def test_a_batch_is_refused_and_told_what_to_do(text):
    error = refusal(text)
    assert error.code == INVALID_REQUEST
    assert "batch" in error.message
    assert error.frame_id is None, "it is not the answer to any one of them"


# -- ids


@pytest.mark.parametrize(
    "text",
    ["0", "1", "-1", "9007199254740993", "1.5", "1e3", "-0", '""', '"a"', '"7"', '"\\u00e9\\n"'],
)
@pytest.mark.req("R-ANSWER")
def test_an_id_is_echoed_as_it_was_spelled(text):
    frame = frames.decode(envelope(id=text, method='"ping"'))
    assert bytes(frame.id) == text.encode()
    assert encode.result(frame.id, b"{}") == b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % (
        text.encode()
    )


@pytest.mark.parametrize("text", ["null", "true", "false", "{}", "[]", '{"a":1}'])
def test_an_id_that_is_no_number_or_string_is_refused(text):
    error = refusal(envelope(id=text, method='"ping"'))
    assert (error.code, error.frame_id) == (INVALID_REQUEST, None)


def test_an_error_may_have_no_id():
    frame = frames.decode(envelope(id="null", error='{"code":-32700,"message":"x"}'))
    assert not frame.method


def test_a_result_must_have_an_id():
    assert refusal(envelope(id="null", result="{}")).code == INVALID_REQUEST


def test_an_id_may_be_as_long_as_the_limit_and_no_longer():
    longest = '"' + "x" * (frames.MAX_ID_BYTES - 2) + '"'
    assert frames.decode(envelope(id=longest, method='"ping"')).is_request
    error = refusal(envelope(id=longest[:-1] + 'x"', method='"ping"'))
    assert (error.code, error.frame_id) == (INVALID_REQUEST, None)


@given(st.binary(max_size=60))
@example(b"\xef\xbb\xbf{}")
@example(b'{"id":01,"method":"m"}')
def test_any_bytes_are_a_frame_or_a_frame_error(data):
    with contextlib.suppress(FrameError):
        frames.decode(data)


@pytest.mark.parametrize("order", [("id", "result"), ("result", "id")])
def test_a_usual_answer_is_read_in_one_step(order):
    members = {"id": '"a"', "result": '{"n":1.0,"text":"é"}'}
    data = envelope(**{name: members[name] for name in order})
    answer = read_answer(data)
    assert answer is not None
    assert (answer[0], bytes(answer[1])) == (b'"a"', members["result"].encode())


@pytest.mark.parametrize(
    "more",
    [
        '"error":{"code":1}',
        '"method":"m"',
        '"result":[1]',
        '"id":2',
        '"params":{}',
        '"jsonrpc":"1"',
    ],
)
def test_an_answer_with_another_member_is_not_a_usual_one(more):
    for inside in ('"id":1,"result":{},%s', '%s,"id":1,"result":{}'):
        data = f'{{"jsonrpc":"2.0",{inside % more}}}'.encode()
        assert read_answer(data) is None


@pytest.mark.parametrize("text", ["[" * 80 + "]" * 80, '"' + "x" * 5_000 + '"', '"\xff"'])
def test_a_deep_large_or_broken_answer_is_not_a_usual_one(text):
    data = b'{"jsonrpc":"2.0","id":1,"result":%b}' % text.encode("latin-1")
    assert read_answer(data) is None


@pytest.mark.parametrize("half", [r"\ud800", r"\uDBFFx", r"\udc00", r"\ud800\ud800"])
def test_half_a_character_is_named(half):
    error = refusal(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"%b"}}' % half.encode())
    assert "half of a character" in error.message
    assert error.frame_id == b"1"


def test_a_whole_character_is_none_of_that():
    assert "half" not in refusal(b'{"jsonrpc":"2.0","id":1,"method":"\\ud83d\\ude00"').message
