"""The one encoder: whatever a payload holds, the other side sees exactly one frame."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from tests.protocol import json_texts

from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.lines import LineReader

SMUGGLED = '{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"evil"}}'
BREAKS = ("\n", "\r", "\r\n", "\n\n", "\r\r\n", " \n\t")


def kept(text: str | bytes) -> object:
    """The meaning of a JSON text, with the spelling of numbers and the order of members."""
    return json.loads(
        text,
        parse_int=lambda n: ("number", n),
        parse_float=lambda n: ("number", n),
        object_pairs_hook=lambda pairs: ("object", pairs),
    )


def ways_out(payload: bytes) -> dict[str, bytes]:
    """Every frame that carries a payload of someone else's."""
    meta = encode.dumps({"name": "t", "_meta": Raw(payload), "arguments": Raw(payload)})
    return {
        "request": encode.request(b"1", "tools/call", payload),
        "rebuilt params": encode.request(b"1", "tools/call", meta),
        "notification": encode.notification("notifications/message", payload),
        "result": encode.result(b"1", payload),
        "error": encode.error(b"1", payload),
    }


def payload_of(frame: frames.Frame) -> bytes:
    return bytes(frame.params or frame.result or frame.error)


@pytest.mark.req("S-11")
@given(json_texts.payloads)
def test_every_frame_is_one_line_that_means_the_same(text):
    payload = text.encode()
    for way, sent in ways_out(payload).items():
        assert sent.count(b"\n") == 1, way
        assert sent.endswith(b"\n"), way
        assert b"\r" not in sent, way
        if way != "rebuilt params":
            assert kept(payload_of(frames.decode(sent))) == kept(text), way
        else:
            rebuilt = frames.members(payload_of(frames.decode(sent)))
            assert kept(bytes(rebuilt["_meta"])) == kept(text)
            assert kept(bytes(rebuilt["arguments"])) == kept(text)


@pytest.mark.req("FR-007", "FR-008")
@given(json_texts.payloads_in_line)
def test_a_payload_without_line_breaks_goes_out_untouched(text):
    payload = text.encode()
    for way, sent in ways_out(payload).items():
        assert payload in sent, way


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", BREAKS)
@pytest.mark.parametrize(
    "shape",
    ['{{"a":[{0}{1}{0}]}}', '{{{0}"a":{0}{1}{0}}}', '{{"a":{{"b":[1,{0}{1}{0},1.0]}}}}'],
)
def test_a_frame_hidden_between_line_breaks_stays_inside(line_break, shape):
    payload = shape.format(line_break, SMUGGLED).encode()
    for way, sent in ways_out(payload).items():
        lines = [line for line in LineReader().feed(sent) if line.strip()]
        assert len(lines) == 1, way
        assert len(sent.splitlines()) == 1, way
        outer = frames.decode(lines[0])
        assert bytes(outer.id) != b"99", way


@pytest.mark.req("S-11")
@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c"])
def test_what_only_some_take_for_a_line_break_is_no_frame_boundary(separator):
    """Raw they may stand only in strings: a hidden frame there has its quotes escaped."""
    text = json.dumps({"a": f"x{separator}{SMUGGLED}{separator}"}, ensure_ascii=False)
    for way, sent in ways_out(text.encode()).items():
        assert sent.count(b"\n") == 1, way
        pieces = sent.decode().splitlines()
        assert all(not _is_frame(piece) for piece in pieces[1:-1]), way


def _is_frame(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@given(st.text())
@example("tools/call\n")
@example('x","id":1,"y":"')
def test_a_method_name_of_any_characters_stays_a_string(method):
    try:
        sent = encode.request(b"1", method)
    except UnicodeEncodeError:
        assert any("\ud800" <= char <= "\udfff" for char in method)
        return
    assert json.loads(sent) == {"jsonrpc": "2.0", "id": 1, "method": method}
    assert sent.count(b"\n") == 1
    assert json.loads(encode.notification(method)) == {"jsonrpc": "2.0", "method": method}


def test_without_params_there_is_no_such_member():
    assert encode.request(b"1", "ping") == b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    assert encode.notification("x") == b'{"jsonrpc":"2.0","method":"x"}\n'


def test_an_error_object_of_ours_has_code_message_and_data():
    body = encode.error_object(-32001, "late", {"delivery": "unknown"})
    assert json.loads(body) == {"code": -32001, "message": "late", "data": {"delivery": "unknown"}}
    assert json.loads(encode.error_object(-32001, "late")) == {"code": -32001, "message": "late"}


@given(st.text(alphabet=st.characters()))
@example("\ud800")
def test_an_error_object_can_quote_anything(message):
    sent = encode.error(b"1", encode.error_object(-32602, message, {"quoted": message}))
    assert json.loads(sent)["error"]["code"] == -32602
    assert sent.count(b"\n") == 1
