"""Server-sent events: the reader against a reference, however the bytes are cut; the writer."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode
from mcp_junction.protocol.sse import Event, EventReader, encode_event

steady = settings(deadline=None, derandomize=True, max_examples=400)

VALUES = st.text(st.sampled_from('ab:{}" \u2028é\0'), max_size=6)
LINES = st.one_of(
    st.just(""),
    st.builds(lambda name, colon, value: name + colon + value,
              st.sampled_from(["data", "id", "event", "retry", "other", ""]),
              st.sampled_from(["", ":", ": ", ":  "]),
              st.one_of(VALUES, st.sampled_from(["0", "17", "1e3", "-1", "007"]))),
)  # fmt: skip
BREAKS = st.sampled_from(["\n", "\r", "\r\n"])
TEXTS = st.lists(st.tuples(LINES, BREAKS), max_size=25).map(
    lambda pairs: "".join(line + end for line, end in pairs).encode()
)


def reference(text: bytes) -> list[Event]:
    """The standard's algorithm on a whole text, except that an event of an id alone is one too."""
    events: list[Event] = []
    data: list[bytes] = []
    name, event_id, retry = b"", None, None
    for line in re.split(rb"\r\n|\r|\n", text)[:-1]:
        if not line:
            if data or event_id is not None or retry is not None:
                events.append(Event(b"\n".join(data), name, event_id, retry))
            data, name, event_id, retry = [], b"", None, None
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"id" and b"\0" not in value:
            event_id = value
        elif field == b"retry" and re.fullmatch(rb"[0-9]+", value):
            retry = int(value)
    return events


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@steady
@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12))
@example(b"data: x\r\n\r\ndata: y\r\n\r\n", [8, 9, 10, 18])
@example(b"data: x\r\rdata: y\r\r", [8, 9])
@example(b"retry:0\r\nevent:a\n", [8, 8])
def test_however_a_stream_is_cut_the_same_events_come_out(text, places):
    reader = EventReader()
    events = [found for chunk in cut(text, places) for found in reader.feed(chunk)]
    assert events == reference(text)


def test_an_event_comes_out_with_its_last_byte_whatever_ends_its_lines():
    for end in (b"\n", b"\r", b"\r\n"):
        reader = EventReader()
        text = b"id: 7" + end + b"data: x" + end + end
        assert reader.feed(text) == [Event(b"x", b"", b"7")]


def test_a_byte_order_mark_before_the_first_field_is_nothing():
    assert EventReader().feed(b"\xef\xbb\xbfdata: x\n\n") == [Event(b"x")]


def test_comments_and_an_unfinished_event_are_nothing():
    assert EventReader().feed(b": ping\n\nevent: message\n\ndata: half\n") == []


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 60, b"y" * 60],
        [b"data: xxxxx\n"] * 40,
        [b"data: x\ndata: " + b"y" * 120 + b"\n"],
        [b"data: " + b"y" * 120 + b"\n\n"],
    ],
    ids=["one long line", "many short lines", "two lines", "a whole event"],
)
def test_an_event_over_the_limit_is_refused_however_it_comes(chunks):
    reader = EventReader(limit=100)
    with pytest.raises(FrameError, match="over the limit of 100 bytes"):
        list(map(reader.feed, chunks))


def test_many_events_within_the_limit_pass():
    reader = EventReader(limit=100)
    text = b"data: " + b"x" * 90 + b"\n\n"
    assert (
        len([e for _ in range(50) for n in range(len(text)) for e in reader.feed(text[n : n + 1])])
        == 50
    )
    assert len([found for _ in range(50) for found in reader.feed(text)]) == 50
    assert len(reader.feed(text * 50)) == 50


@steady
@given(st.text(max_size=40), st.sampled_from([b"", b"3_7"]))
@example("a\r\nb\rc\nd", b"1_1")
def test_a_frame_is_one_event_with_one_line_of_data(text, event_id):
    frame = encode.notification("m", encode.dumps({"text": text}))
    written = encode_event(frame, event_id)
    assert written.count(b"data:") - frame.count(b"data:") == 1
    (found,) = EventReader().feed(written)
    assert found == Event(frame.rstrip(b"\n"), b"message", event_id or None)


def test_a_payload_with_line_breaks_of_its_own_stays_one_event():
    payload = b'{"a":\r\n\r\n1,\n\n"b":2}'
    (found,) = EventReader().feed(encode_event(encode.result(b"1", payload)))
    assert found.data == b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"b":2}}'
