"""Bytes to lines: the same lines however they arrive, and never more memory than agreed."""

import itertools
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_junction.protocol.lines import LineReader, Overlong

BOM = b"\xef\xbb\xbf"
KEPT = 4096


def split(data: bytes, limit: int) -> list[bytes | Overlong]:
    """The reference: everything at once."""
    lines = data.removeprefix(BOM).split(b"\n")
    bounded = [
        line if len(line) <= limit else Overlong(line[:KEPT], line[-KEPT:], len(line), limit)
        for line in lines
    ]
    return [line for line in bounded if isinstance(line, Overlong) or line.strip()]


def read(chunks: list[bytes], limit: int = 1 << 20) -> list[bytes | Overlong]:
    reader = LineReader(limit)
    lines = [line for chunk in chunks for line in reader.feed(chunk)]
    last = reader.finish()
    return lines if last is None else [*lines, last]


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


_pieces = st.sampled_from([b"\n", b"\n", b"\r\n", b" ", b"{}", b"ab", b"\xc3\xa9", BOM, b"\xef"])
_streams = st.lists(_pieces, max_size=40).map(b"".join)


@pytest.mark.req("F-06")
@given(_streams, st.lists(st.integers(0, 200), max_size=20), st.integers(1, 8))
@example(BOM + b"{}\n", [1], 8)
@example(BOM + b"{}\n", [1, 2], 8)
@example(BOM, [2], 8)
@example(b"\xef\xbb", [1], 8)
@example(b"\xef\n", [1], 8)
def test_any_chunks_give_the_lines_of_the_whole(data, cuts, limit):
    found, expected = read(chunked(data, cuts), limit), split(data, limit)
    assert [_outline(line) for line in found] == [_outline(line) for line in expected]


def _outline(line: bytes | Overlong) -> object:
    """Under a limit this small the head of an overlong line ends with the chunk that broke it."""
    return (line.size, line.tail) if isinstance(line, Overlong) else line


@given(_streams)
def test_single_bytes_give_the_lines_of_the_whole(data):
    assert read([data[i : i + 1] for i in range(len(data))]) == split(data, 1 << 20)


def test_a_line_comes_as_soon_as_it_is_complete():
    reader = LineReader()
    assert reader.feed(b'{"a":') == []
    assert reader.feed(b'1}\n{"b"') == [b'{"a":1}']
    assert reader.feed(b":2}\n") == [b'{"b":2}']
    assert reader.finish() is None


def test_blank_lines_are_left_out():
    assert read([b"\n\r\n  \n\t\n{}\n\n"]) == [b"{}"]


def test_a_carriage_return_is_white_space_at_the_end_of_a_line():
    assert [bytes(line).strip() for line in read([b"{}\r\n[]\r", b"\n"])] == [b"{}", b"[]"]


def test_a_byte_order_mark_is_dropped_at_the_beginning_only():
    assert read([BOM + b"{}\n" + BOM + b"{}\n"]) == [b"{}", BOM + b"{}"]


def test_a_last_line_without_its_end_comes_at_the_end_of_the_stream():
    assert read([b"{}\n{"]) == [b"{}", b"{"]
    assert read([b"{}\n \r"]) == [b"{}"]


@pytest.mark.req("F-07")
@pytest.mark.parametrize("size", [63, 64])
@pytest.mark.parametrize("parts", [1, 2, 9])
def test_a_line_up_to_the_limit_passes(size, parts):
    line = b"x" * size
    assert read(chunked(line + b"\n", [n * size // parts for n in range(1, parts)]), 64) == [line]


@pytest.mark.req("F-07")
@pytest.mark.parametrize("parts", [1, 2, 9])
def test_a_line_over_the_limit_is_reported_and_the_next_one_is_read(parts):
    cuts = [n * 65 // parts for n in range(1, parts)]
    lines = read([*chunked(b"x" * 65 + b"\n", cuts), b"{}\n"], 64)
    assert lines == [Overlong(b"x" * 65, b"x" * 65, 65, 64), b"{}"]


@pytest.mark.req("F-07")
@pytest.mark.parametrize("step", [1000, 4096, 5000, 100_000])
def test_an_overlong_line_keeps_its_head_its_tail_and_its_size(step):
    data = bytes(n % 241 + 11 for n in range(60_000))
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    overlong = Overlong(data[:KEPT], data[-KEPT:], len(data), 10_000)
    assert read([*chunks, b"\n"], 10_000) == [overlong]


@pytest.mark.req("F-07")
def test_a_line_without_end_never_costs_more_than_the_limit_and_a_chunk():
    limit, chunk = 1 << 20, 1 << 16
    reader = LineReader(limit)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = 0
        for _ in range(64):
            assert reader.feed(bytes(bytearray(chunk))) == []
            held = max(held, tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert held <= limit + chunk + (1 << 14)
    last = reader.finish()
    assert isinstance(last, Overlong)
    assert last.size == 64 * chunk
