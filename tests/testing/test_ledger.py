"""The ledger server writes first and speaks then, and misbehaves exactly as it is told."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_junction.testing.client import LineClient, key
from mcp_junction.testing.history import Ledger
from mcp_junction.testing.ledger import CRASH_CODE, FAULTS
from mcp_junction.testing.processes import until

Start = Callable[..., LineClient]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start(ledger: Ledger, tmp_path: Path) -> Iterator[Start]:
    """Start a ledger server by its module, as a user would."""
    clients: list[LineClient] = []

    def start_one(*args: str) -> LineClient:
        module = [sys.executable, "-m", "mcp_junction.testing.ledger"]
        argv = [*module, "--file", str(ledger.path), *args]
        clients.append(LineClient(argv, stderr=tmp_path / "stderr"))
        clients[-1].open()
        return clients[-1]

    yield start_one
    for client in clients:
        client.process.terminate()  # not killed: what it covered of itself is to be written
        client.wait_ended()


def test_it_opens_lists_and_records(start: Start, ledger: Ledger) -> None:
    client = start("--fsync")
    assert client.tools() == ["record", "say", "echo"]
    result = client.result("record", nonce="ä")
    assert result["content"] == [{"type": "text", "text": "ä"}]
    assert result["structuredContent"] == {"nonce": "ä"}
    client.result("echo", nonce="only read")
    assert client.ask("ping")["result"] == {}
    assert client.ask("no/such")["error"]["code"] == -32601
    assert ledger.runs() == {"ä": 1}
    assert client.end() == 0


@pytest.mark.parametrize("fault", ["before_execute", "after_execute_before_answer", "half_answer"])
def test_it_crashes_at_the_point_it_is_told(start: Start, ledger: Ledger, fault: str) -> None:
    client = start()
    asked = client.call("record", nonce="n", fault=fault)
    assert client.wait_ended() == CRASH_CODE
    assert client.answers[key(asked)] == []
    assert ledger.runs() == ({} if fault == "before_execute" else {"n": 1})


def test_every_call_can_be_made_to_suffer(start: Start, ledger: Ledger) -> None:
    client = start("--fault", "after_execute_before_answer")
    client.call("record", nonce="n")
    assert client.wait_ended() == CRASH_CODE
    assert ledger.runs() == {"n": 1}


@pytest.mark.parametrize("fault", ["crlf", "split", "stderr", "noise", "logs", "pings", "progress"])
def test_it_misbehaves_and_answers(start: Start, fault: str, tmp_path: Path) -> None:
    client = start()
    asked = client.call(
        "record", nonce="n", fault=fault, amount=9, size=300, meta={"progressToken": 7}
    )
    assert client.answer(asked)["result"]["structuredContent"] == {"nonce": "n"}
    said = [other.get("method") for other in client.others if isinstance(other, dict)]
    assert bool(client.broken) == (fault == "crlf")
    assert bool(client.garbage) == (fault == "noise")
    assert said.count("notifications/message") == (9 if fault == "logs" else 0)
    assert said.count("notifications/progress") == (9 if fault == "progress" else 0)
    assert said.count("ping") == (9 if fault == "pings" else 0)
    if fault == "stderr":
        assert (tmp_path / "stderr").read_bytes() == b"e" * 9 + b"\n"


def test_a_held_answer_comes_with_the_next_one(start: Start) -> None:
    client = start()
    first = client.call("record", nonce="first", fault="join")
    client.result("record", nonce="second")
    assert client.answer(first)["result"]["structuredContent"] == {"nonce": "first"}


@pytest.mark.parametrize("id_last", [False, True])
def test_answers_are_as_long_as_they_are_asked_to_be(start: Start, id_last: bool) -> None:
    client = start()
    padded = client.call("record", nonce="n", size=5_000)
    huge = client.call("record", nonce="m", fault="huge", amount=3_000_000, id_last=id_last)
    client.answer(padded)
    client.answer(huge)
    assert client.answers[key(padded)][0].size == 5_000
    assert client.answers[key(huge)][0].size == 3_000_000


@pytest.mark.parametrize("obeys", [True, False])
def test_cancellations_are_written_down_and_obeyed_or_not(
    start: Start, ledger: Ledger, obeys: bool
) -> None:
    client = start(*([] if obeys else ["--ignore-cancel"]))
    asked = client.call("record", nonce="n", delay_ms=300)
    client.cancel(asked, "enough")
    client.cancel("unheard of")
    client.result("record", nonce="later", delay_ms=400)
    (entry, other) = ledger.entries("cancel")
    assert (entry["id"], entry["reason"], other["id"]) == (asked, "enough", "unheard of")
    assert len(client.answers[key(asked)]) == (0 if obeys else 1)


def test_it_says_what_it_is_given(start: Start) -> None:
    client = start("--bom")
    text = '{"jsonrpc":"2.0","method":"x","params":{"t":@TOKEN@}}\n{"id":@ID@,"result":{"ok":1}}\n'
    asked = client.call("say", nonce="n", text=text, meta={"progressToken": "t"})
    assert client.answer(asked)["result"] == {"ok": 1}
    assert client.others[-1]["params"] == {"t": "t"}
    asked = client.call("say", nonce="n", hex=b"\xff\n".hex(), answer=True)
    client.answer(asked)
    assert client.garbage == [b"\xff"]


def test_every_line_can_be_written_down(start: Start, ledger: Ledger) -> None:
    client = start("--lines")
    client.send(b"no frame\n")
    client.send(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode() + b"\n")
    client.notify("notifications/roots/list_changed")
    client.result("record", nonce="n")
    lines = [entry["text"] for entry in ledger.entries("line")]
    assert "no frame" in lines
    assert ledger.entries("garbage")[0]["text"] == "no frame"
    assert ledger.entries("notification")[-1]["method"] == "notifications/roots/list_changed"


@pytest.mark.parametrize("fault", ["hang", "deaf"])
def test_it_stops_answering_or_reading(start: Start, ledger: Ledger, fault: str) -> None:
    client = start()
    first = client.call("record", nonce="n", fault=fault)
    until(lambda: ledger.runs()["n"] == 1, 10, "the call to run")
    if fault == "hang":
        client.result("record", nonce="next")
        assert client.answers[key(first)] == []
    else:
        client.answer(first)
        client.call("record", nonce="unheard")
        client.close_input()
        assert client.process.poll() is None
        assert ledger.runs() == {"n": 1}


def test_it_closes_its_stdout_and_lives_on(start: Start) -> None:
    client = start()
    client.call("record", nonce="n", fault="mute")
    with pytest.raises(EOFError):
        client.answer("anything")
    client.call("record", nonce="heard")
    assert client.process.poll() is None


def test_it_floods(start: Start) -> None:
    client = start()
    client.call("record", nonce="n", fault="flood", text="x\n")
    client.wait(lambda: len(client.garbage) > 10_000, 10, "the flood")


def test_every_fault_is_described() -> None:
    assert all(isinstance(words, str) and words for words in FAULTS.values())
    known: dict[str, Any] = FAULTS
    assert {"before_execute", "half_answer", "hang"} <= known.keys()
