"""What the decoder refuses: depth, long numbers, NaN, bad text, members that stand twice."""

import json
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.protocol import json_texts

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import MAX_DEPTH, MAX_DIGITS, is_too_deep
from mcp_junction.protocol.versions import INVALID_REQUEST, PARSE_ERROR

OPEN = {"arrays": b"[", "objects": b'{"k":', "mixed": b'[{"k":'}
CLOSE = {"arrays": b"]", "objects": b"}", "mixed": b"}]"}
LEVELS = {"arrays": 1, "objects": 1, "mixed": 2}


def nested(kind: str, depth: int, core: bytes = b"1") -> bytes:
    """A text that is exactly ``depth`` deep."""
    times, rest = divmod(depth, LEVELS[kind])
    return b"[" * rest + OPEN[kind] * times + core + CLOSE[kind] * times + b"]" * rest


def request(params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":7,"method":"m","params":%b}' % params


def refusal(data: bytes) -> FrameError:
    with pytest.raises(FrameError) as caught:
        frames.decode(data)
    return caught.value


def depth_of(text: bytes) -> int:
    """The oracle: one byte after the other."""
    depth = deepest = 0
    in_string = escaped = False
    for byte in text.decode():
        if in_string:
            if escaped:
                escaped = False
            elif byte == "\\":
                escaped = True
            elif byte == '"':
                in_string = False
        elif byte == '"':
            in_string = True
        elif byte in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in "]}":
            depth -= 1
    return deepest


# -- depth


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("core", [b"1", b'"]}[{"', rb'"\""', rb'"\\"', rb'"\\\"[[[["', rb'"[[\\"'])
def test_sixty_four_levels_pass_and_one_more_does_not(kind, core):
    assert frames.decode(request(nested(kind, MAX_DEPTH - 1, core))).is_request
    error = refusal(request(nested(kind, MAX_DEPTH, core)))
    assert (error.code, error.frame_id) == (PARSE_ERROR, b"7")
    assert "64" in error.message


@given(json_texts.values, st.integers(1, 12), st.integers(0, 8), st.sampled_from(sorted(OPEN)))
@example('"' + "[" * 80 + '"', 1, 0, "arrays")
@example('"' + '\\"' * 40 + "[" * 80 + '"', 1, 0, "arrays")
@example('"\\\\\\\\"', 12, 12, "mixed")
def test_the_scan_agrees_with_counting(text, limit, levels, kind):
    data = nested(kind, levels, text.encode())
    deep = depth_of(data) > limit
    assert is_too_deep(data, limit) is deep
    if not deep:
        assert not is_too_deep(data, limit, exact=False), "inexact may miss depth, never invent it"


@given(st.lists(st.sampled_from(["[", "]", "{", "}", '"', "\\", "\\\\", '\\"', "x"]), max_size=30))
def test_brackets_in_strings_never_count(pieces):
    text = '"' + "".join(pieces).replace("\\", "\\\\").replace('"', '\\"') + '"'
    data = b"[" + text.encode() + b"]"
    assert json.loads(data) is not None
    assert not is_too_deep(data, 1)
    assert is_too_deep(data, 0)


def test_a_large_shallow_frame_with_many_brackets_passes():
    rows = b"[" + b",".join([b'{"a":[1,"]"]}'] * 2000) + b"]"
    assert frames.decode(request(b'{"rows":%b}' % rows)).is_request
    assert frames.decode(request(b'{"rows":%b}' % rows), exact=False).is_request


def test_a_frame_that_will_be_rewritten_is_counted_exactly():
    """Else the encoder would meet it without a limit: a disguised depth, and a line break."""
    disguised = b'["]",' * 300 + b"1" + b',"["]' * 300
    assert frames.decode(request(disguised), exact=False).is_request
    with pytest.raises(FrameError, match="64"):
        frames.decode(request(disguised.replace(b",", b",\r")), exact=False)


# -- numbers


@pytest.mark.parametrize("digits", [MAX_DIGITS - 1, MAX_DIGITS])
@pytest.mark.parametrize("shape", [b"%b", b"-%b", b"0.%b", b"1e%b", b"[1,%b,2]"])
def test_a_number_may_have_as_many_digits_as_the_limit(digits, shape):
    assert frames.decode(request(b'{"n":%b}' % (shape % (b"1" * digits)))).is_request


@pytest.mark.parametrize("before", [0, 1, 63, 64, 4000, 4299, 4300, 9000])
@pytest.mark.parametrize("shape", [b"%b", b"-%b", b"0.%b", b"1e%b", b"[1,%b,2]"])
def test_a_number_with_more_digits_is_refused_wherever_it_stands(before, shape):
    number = shape % (b"1" * (MAX_DIGITS + 1))
    error = refusal(request(b'{"pad":"%b","n":%b}' % (b"x" * before, number)))
    assert (error.code, error.frame_id) == (PARSE_ERROR, b"7")


@pytest.mark.parametrize("text", [b"1" * 20_000, b'\\"' + b"1" * 20_000, b"1" * 9000 + b"\\\\"])
def test_digits_in_a_string_are_no_number(text):
    assert frames.decode(request(b'{"s":"%b","t":"%b"}' % (text, text))).is_request


def test_many_numbers_are_no_long_one_and_take_little_work():
    data = request(b"[%b]" % b",".join([b"1" * 4000] * 250))
    spent = []
    for _ in range(3):
        began = time.thread_time()
        assert frames.decode(data).is_request
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.1, "CPU seconds of this thread"


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"01", b"1.", b"+1"])
@pytest.mark.parametrize("place", [b"%b", b"[%b]", b'{"a":%b}'])
def test_what_is_no_json_number_is_refused_at_any_depth(word, place):
    assert refusal(b'{"id":7,"result":%b}' % (place % word)).code == PARSE_ERROR


# -- text


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf8\x88\x80"])
@pytest.mark.parametrize("frame", [b'{"id":7,"method":"m","params":{"a":"%b"}}', b'{"%b":1}'])
def test_bytes_that_are_not_utf_8_are_refused(bad, frame):
    error = refusal(frame % bad)
    assert error.code == PARSE_ERROR
    assert "UTF-8" in error.message


@pytest.mark.parametrize(
    "bad", [rb"\ud800", rb"\udc00", rb"\ud800x", rb"\ud800A", rb"\ud800\ud800", rb"\udc00\ud800"]
)
@pytest.mark.parametrize("place", [b'{"a":"%b"}', b'{"%b":1}', b'{"a":[{"b":"%b"}]}'])
def test_half_a_surrogate_pair_is_refused_at_any_depth(bad, place):
    error = refusal(request(place % bad))
    assert (error.code, error.frame_id) == (PARSE_ERROR, b"7")


@pytest.mark.parametrize("control", [b"\n", b"\r", b"\t", b"\0", b"\x1f"])
def test_a_raw_control_character_cannot_stand_in_a_string(control):
    assert refusal(request(b'{"a":"x%by"}' % control)).code == PARSE_ERROR


# -- members that stand twice

_ESCAPED = {"id": '"\\u0069d"', "method": '"m\\u0065thod"', "params": '"\\u0070arams"'}
_names = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x", "y", ""])
_spelled = st.one_of(_names.map(json.dumps), st.sampled_from(sorted(_ESCAPED.values())))
_TEXTS = {"jsonrpc": '"2.0"', "id": "1", "method": '"m"', "params": "{}", "result": "{}"}


@st.composite
def envelopes(draw: st.DrawFn) -> str:
    pieces = []
    for name in draw(st.lists(_spelled, min_size=1, max_size=7)):
        value = _TEXTS.get(json.loads(name), draw(st.sampled_from(["{}", "[ 1 ]", '{"id":2}'])))
        pieces.append(draw(json_texts.spaces) + name + ":" + draw(json_texts.spaces) + value)
    return "{" + ",".join(pieces) + draw(json_texts.spaces) + "}"


@given(envelopes())
@example('{"id":1,"id":2,"method":"m"}')
@example('{"id":1,"\\u0069d":2,"method":"m"}')
@example('{\n  "method": "m",\n  "id": 1,\n  "method": "tools/call"\n}')
@example('{"method":"m","params":{},"params":{}}')
def test_an_envelope_with_a_member_twice_is_never_taken(text):
    pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    names = [name for name, _ in pairs]
    repeated = len(set(names)) != len(names)
    assert frames.has_repeated_member(text.encode()) is (repeated or "\\" in text)
    try:
        frames.decode(text.encode())
    except FrameError as error:
        if "repeated" in error.message:
            assert repeated or "\\" in text
    else:
        assert not repeated


@given(json_texts.objects(json_texts.values, st.sampled_from(['"name"', '"n\\u0061me"', '"x"'])))
@example('{"name":"a","name":"b"}')
@example('{"name":1,"name":2}')
@example('{"name" : "a" , "arguments" : {} , "name" : "b"}')
@example('{"name":"a","x":{"name":"b"}}')
def test_params_with_a_member_twice_are_never_taken(text):
    names = [name for name, _ in json.loads(text, object_pairs_hook=lambda pairs: pairs)]
    repeated = len(set(names)) != len(names)
    try:
        found = frames.unique_members(text.encode())
    except FrameError:
        assert repeated or re.search(r"n\\u0061me", text)
    else:
        assert not repeated
        assert list(found) == names


# -- all of it, extreme


EXTREMES = {
    "deep arrays": request(nested("arrays", 10**5)),
    "deep objects": request(nested("objects", 10**5)),
    "deep and unfinished": b'{"id":7,"method":"m","params":' + b'[{"a":' * 10**5,
    "deep behind strings": request(b'{"a":"]]]]","b":%b}' % nested("mixed", 10**5)),
    "a 4 MB integer": request(b'{"n":%b}' % (b"1" * 4_000_000)),
    "a 4 MB fraction": request(b'{"n":0.%b}' % (b"1" * 4_000_000)),
    "a 4 MB id": b'{"id":%b,"method":"m"}' % (b"1" * 4_000_000),
    "a 4 MB string id": b'{"id":"%b","method":"m"}' % (b"1" * 4_000_000),
    "not a number": request(b'{"n":NaN}'),
    "two ids": b'{"id":7,"method":"m","id":8}',
    "two methods, apart": b'{"method":"ping","params":["%b"],"id":7,"method":"m"}' % (b"x" * 10**6),
    "two names": b'{"id":7,"method":"m","method":"tools/call"}',
    "a lone surrogate": request(rb'{"s":"\ud800"}'),
    "a lone surrogate as key": request(rb'{"\udfff":1}'),
}


@pytest.mark.req("S-03")
@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_frame_is_refused_with_little_work(name):
    data = EXTREMES[name]
    spent = []
    for _ in range(3):
        began = time.thread_time()
        error = refusal(data)
        spent.append(time.thread_time() - began)
    assert error.code in (PARSE_ERROR, INVALID_REQUEST)
    assert error.frame_id in (b"7", None)
    assert min(spent) < 0.05, "CPU seconds of this thread"
