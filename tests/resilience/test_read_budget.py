"""ReadBudget and PacedInput: how much of one turn of the loop input may take."""

import asyncio

import pytest

from mcp_junction.resilience.read_budget import TURN_LIMIT, PacedInput, ReadBudget


class Clock:
    """A clock that is moved by hand, from inside what it measures."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Flood:
    """Output that takes a while to take, in lines of ``each`` seconds."""

    def __init__(self, clock: Clock, name: str, lines: int, each: float, log: list[str]):
        self.clock, self.name, self.lines, self.each, self.log = clock, name, lines, each, log

    def __call__(self, until: float) -> bool:
        while self.lines:
            self.lines -= 1
            self.clock.time += self.each
            self.log.append(self.name)
            if self.clock.now() > until:
                break
        return self.lines > 0


@pytest.fixture
def clock():
    return Clock()


async def test_what_waits_is_taken_in_a_later_turn_and_once(clock):
    turns, log = ReadBudget(clock.now), []
    turns.wait(Flood(clock, "a", 2, 0.0, log))
    assert log == []
    await asyncio.sleep(0)
    assert log == ["a", "a"]
    await asyncio.sleep(0)
    assert log == ["a", "a"]


async def test_however_many_flood_a_turn_stays_short(clock):
    turns, log = ReadBudget(clock.now), []
    for number in range(20):
        turns.wait(Flood(clock, f"s{number}", 8, TURN_LIMIT / 4, log))
    longest = 0.0
    while len(log) < 160:
        began, before = clock.now(), len(log)
        await asyncio.sleep(0)
        assert len(log) > before, "each turn takes some"
        longest = max(longest, clock.now() - began)
    assert longest <= TURN_LIMIT * 1.5


async def test_floods_are_taken_one_after_the_other(clock):
    turns, log = ReadBudget(clock.now), []
    for name in "abc":
        turns.wait(Flood(clock, name, 2, TURN_LIMIT * 1.5, log))
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert log == list("abcabc")[:count], "one a turn, for it is over then"
        assert turns.is_spent
    await asyncio.sleep(0)
    assert not turns.is_spent


async def test_what_is_taken_as_it_comes_counts_until_the_next_turn(clock):
    turns = ReadBudget(clock.now)
    turns.spend(TURN_LIMIT / 2)
    assert not turns.is_spent
    turns.spend(TURN_LIMIT / 2)
    assert turns.is_spent
    await asyncio.sleep(0)
    assert not turns.is_spent


class Connection:
    """Parses pieces slowly, and notes what it is told."""

    def __init__(self, clock: Clock, each: float) -> None:
        self.clock, self.each = clock, each
        self.parsed = b""
        self.log: list[str] = []

    def receive_piece(self, piece: memoryview, *, is_last: bool) -> None:
        self.clock.time += self.each
        self.parsed += piece
        if is_last:
            self.log.append("last")

    def resume_input(self) -> None:
        self.log.append("resume")


DATA = bytes(range(256)) * 1024


async def test_what_is_parsed_quickly_is_parsed_as_it_comes(clock):
    connection = Connection(clock, 0.0)
    assert not PacedInput(connection, ReadBudget(clock.now)).take(DATA)
    assert connection.parsed == DATA
    assert connection.log == ["last"]


async def test_reading_is_paused_until_what_has_come_is_parsed(clock):
    connection = Connection(clock, TURN_LIMIT)
    paced = PacedInput(connection, ReadBudget(clock.now))
    assert paced.take(DATA)
    assert connection.log == []
    assert 0 < len(connection.parsed) < len(DATA) / 100
    before = -1
    while paced.is_waiting:
        assert len(connection.parsed) > before
        before = len(connection.parsed)
        await asyncio.sleep(0)
    assert connection.parsed == DATA
    assert connection.log == ["last", "resume"]


async def test_what_waits_of_a_connection_that_ends_is_parsed_then(clock):
    connection = Connection(clock, TURN_LIMIT)
    paced = PacedInput(connection, ReadBudget(clock.now))
    paced.take(DATA)
    paced.finish()
    assert connection.parsed == DATA
    assert connection.log == ["last"]
    await asyncio.sleep(0)
    assert connection.log == ["last"]


async def test_floods_of_several_connections_share_the_turns(clock):
    budget = ReadBudget(clock.now)
    connections = [Connection(clock, TURN_LIMIT / 2) for _ in range(10)]
    for connection in connections:
        PacedInput(connection, budget).take(DATA)
    while any("resume" not in connection.log for connection in connections):
        began = clock.now()
        await asyncio.sleep(0)
        assert clock.now() - began <= TURN_LIMIT * 1.5
    assert all(connection.parsed == DATA for connection in connections)
