"""The history checker finds each kind of lie, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_junction.testing.history import Ledger, Seen, check, tally, verdict


def ledger_of(tmp_path: Path, *nonces: str) -> Ledger:
    path = tmp_path / "ledger"
    lines = [json.dumps({"event": "run", "nonce": nonce, "id": 1}) for nonce in nonces]
    path.write_text("".join(f"{line}\n" for line in lines) + '{"event": "run", "non')
    return Ledger(path)


def result(nonce: str) -> dict[str, Any]:
    return {"id": 1, "result": {"structuredContent": {"nonce": nonce}}}


def failure(delivery: str | None) -> dict[str, Any]:
    return {"id": 1, "error": {"code": -1, "data": {"delivery": delivery} if delivery else None}}


@pytest.mark.parametrize(
    ("seen", "runs"),
    [
        (Seen("a", [result("a")]), ["a"]),
        (Seen("a", [failure("unknown")]), ["a"]),
        (Seen("a", [failure("unknown")]), []),
        (Seen("a", [failure("executed")]), ["a"]),
        (Seen("a", [failure("not_sent")]), []),
        (Seen("a", [failure(None)]), ["a"]),
        (Seen("a", [], cancelled=True), ["a"]),
        (Seen("a", [], cancelled=True), []),
        (Seen("a", [result("a")], cancelled=True), ["a"]),
    ],
)
def test_what_may_happen_is_no_breach(tmp_path: Path, seen: Seen, runs: list[str]) -> None:
    assert check([seen], ledger_of(tmp_path, *runs)) == []


@pytest.mark.parametrize(
    ("seen", "runs", "words"),
    [
        (Seen("a", []), ["a"], "0 answers"),
        (Seen("a", [result("a"), failure("unknown")]), ["a"], "2 answers"),
        (Seen("a", [result("a"), result("a")], cancelled=True), ["a"], "2 answers"),
        (Seen("a", [result("a")]), ["a", "a"], "ran 2 times"),
        (Seen("a", [failure("not_sent")]), ["a"], "not to be sent, and ran"),
        (Seen("a", [result("a")]), [], "ended as result, and did not run"),
        (Seen("a", [failure("executed")]), [], "ended as executed, and did not run"),
        (Seen("a", [failure(None)]), [], "ended as refused, and did not run"),
        (Seen("a", [result("b")]), ["a"], "got the answer to 'b'"),
        (Seen("a", [{"result": {}}]), ["a"], "got the answer to None"),
        (Seen("a", [result("a")]), ["a", "b"], "b: ran, and nobody asked for it"),
    ],
)
def test_each_lie_is_told(tmp_path: Path, seen: Seen, runs: list[str], words: str) -> None:
    (breach,) = check([seen], ledger_of(tmp_path, *runs))
    assert words in breach


def test_a_tool_that_may_be_repeated_may_run_twice(tmp_path: Path) -> None:
    seen = [Seen("a", [result("a")])]
    assert check(seen, ledger_of(tmp_path, "a", "a"), repeatable=True) == []


def test_endings_are_counted(tmp_path: Path) -> None:
    calls = [Seen("a", [result("a")]), Seen("b", [failure("unknown")]), Seen("c", [])]
    assert tally(calls) == {"result": 1, "unknown": 1}
    assert verdict(failure(None)) == "refused"


def test_a_ledger_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none").entries() == []
    assert ledger_of(tmp_path, "a", "a", "b").runs() == {"a": 2, "b": 1}
