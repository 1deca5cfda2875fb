"""LineClient: waits with a bound, keeps everything, and knows when the program has ended."""

import os
import sys

import pytest

from mcp_junction.testing.client import LineClient, key

ECHO = """
import sys, json
for line in sys.stdin:
    frame = json.loads(line)
    if "id" in frame:
        print(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": frame}), flush=True)
    if frame.get("method") == "noise":
        print("noise", flush=True)
"""


@pytest.fixture
def client():
    client = LineClient([sys.executable, "-c", ECHO], env=dict(os.environ))
    yield client
    client.kill()


def test_ids_of_two_kinds_are_two_ids(client: LineClient) -> None:
    client.request("a", frame_id=1)
    client.request("b", frame_id="1")
    assert client.answer(1)["result"]["method"] == "a"
    assert client.answer("1")["result"]["method"] == "b"
    assert client.answers[key(1)][0].at >= client.asked[key(1)]


def test_what_is_no_frame_is_kept_apart(client: LineClient) -> None:
    client.notify("noise")
    client.wait(lambda: bool(client.garbage), 10, "noise")
    assert client.garbage == [b"noise"]


def test_a_wait_ends_in_time_and_at_the_end_of_the_program(client: LineClient) -> None:
    with pytest.raises(TimeoutError, match="an answer to 99"):
        client.answer(99, 0.05)
    client.process.kill()
    with pytest.raises(EOFError, match="an answer to 99"):
        client.answer(99, 10)


def test_reading_can_stop_and_go_on(client: LineClient) -> None:
    client.ask("a")
    client.stop_reading()
    later = client.request("b")
    with pytest.raises(EOFError):
        client.answer(later, 0.1)
    client.start_reading()
    assert client.answer(later)["result"]["method"] == "b"


def test_it_ends_with_its_input_or_when_hung_up_on(client: LineClient) -> None:
    client.ask("a")
    assert client.end() == 0
    other = LineClient([sys.executable, "-c", ECHO])
    other.ask("a")
    other.hang_up()
    other.wait_ended()
    other.kill()
