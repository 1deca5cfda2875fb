"""A JSON text that is to go into a frame has the limits of a frame, and is not read any further."""

import pytest

from mcp_junction.errors import FrameError
from mcp_junction.protocol import requests
from mcp_junction.protocol.frames import MAX_DEPTH, MAX_DIGITS

LONGEST = b"7" * MAX_DIGITS


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"a": 1.0, "b":1e400,"c":-0}',
        b'{"a":%b}' % LONGEST,
        b'"%b7"' % LONGEST,
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        '{"é":"ключ"}'.encode(),
    ],
)
def test_it_stays_as_it_was_written(text):
    assert requests.check_json(text) == text
    assert requests.check_json(b" \r\n\t%b\n" % text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "truncated"),
        (b"{} {}", "malformed"),
        (b'{"a":NaN}', "malformed"),
        (b'{"a":"\xff"}', "not valid UTF-8 (byte 6)"),
        (b'{"a":%b7}' % LONGEST, f"a number has more than {MAX_DIGITS} digits"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper than 64 levels"),
        (b"[" * 100_000, "nested deeper than 64 levels"),
    ],
)
def test_what_no_frame_may_hold_is_refused(text, words):
    with pytest.raises(FrameError, match=words.replace("(", r"\(").replace(")", r"\)")):
        requests.check_json(text)
