"""Outbox: one write for what is sent in one turn of the loop."""

import asyncio

from mcp_junction.outbox import Outbox


class Transport(asyncio.WriteTransport):
    """Keeps what is written to it; ``stuck`` bytes are never taken."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.stuck = 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.stuck

    def close(self) -> None:
        self.closed = True


async def test_the_frames_of_one_turn_are_one_write_in_their_order():
    outbox = Outbox(pipe := Transport())
    for frame in (b"a\n", b"b\n", b"c\n"):
        outbox.send(frame)
    assert pipe.writes == []
    await asyncio.sleep(0)
    assert pipe.writes == [b"a\nb\nc\n"]
    outbox.send(b"d\n")
    await asyncio.sleep(0)
    assert pipe.writes[1:] == [b"d\n"], "and the next turn is another write"


async def test_unsent_counts_what_waits_here_and_there():
    outbox = Outbox(pipe := Transport())
    pipe.stuck = 100
    outbox.send(b"12345")
    assert outbox.unsent == 105
    await asyncio.sleep(0)
    assert outbox.unsent == 100


async def test_what_was_flushed_is_not_written_again():
    outbox = Outbox(pipe := Transport())
    outbox.send(b"a")
    outbox.flush()
    await asyncio.sleep(0)
    assert pipe.writes == [b"a"]


async def test_closing_writes_what_is_left_first():
    outbox = Outbox(pipe := Transport())
    outbox.send(b"last")
    outbox.close()
    assert (pipe.writes, pipe.closed, outbox.is_closing) == ([b"last"], True, True)


async def test_nothing_is_written_to_a_transport_that_closes():
    outbox = Outbox(pipe := Transport())
    pipe.closed = True
    outbox.send(b"late")
    await asyncio.sleep(0)
    assert pipe.writes == []
    assert outbox.unsent == 0
