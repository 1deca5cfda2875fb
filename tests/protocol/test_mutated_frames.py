"""Mutated frames through the decoder: a frame or a FrameError, and never much work."""

import json
import time

import pytest
from tests.protocol.mutations import SEEDS, mutated

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.requests import read_answer

LONGEST = 0.1  # CPU seconds of this thread


def decode(data: bytes) -> frames.Frame | FrameError:
    spent = LONGEST
    for _ in range(3):  # once may be the collector's fault
        began = time.thread_time()
        found: frames.Frame | FrameError
        try:
            found = frames.decode(data)
        except FrameError as error:
            found = error
        spent = time.thread_time() - began
        if spent < LONGEST:
            break
    assert spent < LONGEST
    return found


def check(data: bytes) -> None:
    """Whatever comes of it can be sent on or answered as one line of valid JSON."""
    found = decode(data)
    check_answer(data, found)
    if isinstance(found, FrameError):
        answer = encode.error(
            found.frame_id or b"null", encode.error_object(found.code, found.message)
        )
        assert json.loads(answer)["error"]["message"]
    elif not found.method:
        answer = encode.result(found.id or b"null", found.result or b"{}")
        json.loads(answer)
    else:
        answer = encode.request(found.id or b"1", found.method, found.params)
        json.loads(answer)
    assert answer.count(b"\n") == 1
    assert answer.endswith(b"\n")


def check_answer(data: bytes, found: frames.Frame | FrameError) -> None:
    """The short way to read answers finds what the long one does, or leaves it to that."""
    answer = read_answer(data)
    if answer is None or answer[0][:1] not in b'"-0123456789':
        return
    assert isinstance(found, frames.Frame), "a usual answer is a frame"
    assert (bytes(found.id), bytes(found.result)) == (answer[0], bytes(answer[1]))
    assert not found.method
    assert not found.error


def test_the_seeds_are_frames_but_for_the_batch():
    for seed in SEEDS[:-1]:
        assert not isinstance(decode(seed), FrameError)


@pytest.mark.req("S-02")
def test_mutated_frames_are_decoded_or_refused():
    for data in mutated(seed=2, count=5_000):
        check(data)


@pytest.mark.soak
@pytest.mark.req("S-02")
@pytest.mark.timeout(1800)
def test_a_million_mutated_frames_are_decoded_or_refused():
    for data in mutated(seed=3, count=1_000_000):
        check(data)
