"""Mutated frames through the Dispatcher: each request is answered once, and nothing is raised."""

import json

import pytest
from tests.listener.backends import Client, FakeBackend
from tests.protocol.mutations import mutated

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.testing.link import FakeUpstream


def expected(data: bytes) -> list[object]:
    """The ids that must be answered, as they will look in the answers."""
    try:
        frame = frames.decode(data)
    except FrameError as error:
        return [json.loads(error.frame_id or b"null")]
    return [json.loads(bytes(frame.id))] if frame.is_request else []


async def check(count: int, seed: int) -> None:
    client = Client(FakeBackend(FakeUpstream("one"), FakeUpstream("two")))
    client.open()
    for data in mutated(seed, count):
        client.say(data)
        if len(client.tasks):
            await client.finished()
        assert [frame.get("id") for frame in client.take()] == expected(data), data
    assert client.session.calls == {}
    assert client.session.is_open


@pytest.mark.req("S-02", "R-ANSWER")
async def test_each_mutated_request_is_answered_exactly_once():
    await check(5_000, seed=4)


@pytest.mark.soak
@pytest.mark.req("S-02", "R-ANSWER")
@pytest.mark.timeout(3600)
async def test_each_of_a_million_mutated_requests_is_answered_exactly_once():
    await check(1_000_000, seed=5)
