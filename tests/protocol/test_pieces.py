"""Whoever sends in tiny parts takes hardly more memory than what is sent."""

import tracemalloc
from collections.abc import Callable, Iterable

import pytest

from mcp_junction.protocol.lines import MERGE_EVERY, LineReader, merge_small
from mcp_junction.protocol.sse import EventReader

SIZE = 200_000


def kept(parts: Iterable[bytes], joint: bytes = b"") -> list[bytes]:
    """What a reader keeps that was given these."""
    found: list[bytes] = []
    for part in parts:
        found.append(part)
        if not len(found) % MERGE_EVERY:
            merge_small(found, joint)
    return found


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1_000, 70_000])
@pytest.mark.parametrize("joint", [b"", b"\n"])
def test_parts_are_the_same_bytes_when_they_are_joined(size, joint):
    parts = [bytes([n % 251]) * size for n in range(1_000_000 // (size + 200))]
    assert joint.join(kept(parts, joint)) == joint.join(parts)


def test_large_parts_are_left_as_they_are():
    parts = [bytes(10_000) for _ in range(3 * MERGE_EVERY)]
    assert all(one is other for one, other in zip(kept(parts), parts, strict=True))


def lines() -> Callable[[bytes], object]:
    return LineReader(2 * SIZE).feed


def events() -> Callable[[bytes], object]:
    return EventReader(4 * SIZE).feed


@pytest.mark.bulk
@pytest.mark.parametrize(
    ("reader", "part"), [(lines, b"ab"), (events, b"ab"), (events, b"data:ab\n")]
)
def test_a_reader_keeps_tiny_parts_at_little_more_than_their_size(reader, part):
    feed = reader()
    tracemalloc.start()
    try:
        for _ in range(SIZE // 2):
            assert feed(bytes(bytearray(part))) == []
        assert tracemalloc.get_traced_memory()[0] < 3 * SIZE
    finally:
        tracemalloc.stop()
