"""Idempotency keys: one call runs; the others wait, are answered, or are refused."""

import random

import pytest
from msgspec.structs import replace

from mcp_junction.resilience.idempotency import (
    KEPT_FOR,
    MAX_RESULT,
    Claim,
    ClaimAction,
    ClaimEnd,
    ClaimKey,
    ClaimState,
    check_key,
    judge_claim,
    settle_claim,
)

NOW = 1_000_000.0
RUNNING = Claim(ClaimKey("a", "s", "t", "k"), "hash", ClaimState.RUNNING, "writer-1", NOW)


def judged(claim: Claim | None, arguments: str = "hash", now: float = NOW, alive=True) -> str:
    return judge_claim(claim, arguments, now, is_owner_alive=alive).value


def test_the_first_one_runs():
    assert judged(None) == "run"


def test_a_second_one_waits_for_the_first():
    assert judged(RUNNING) == "wait"


@pytest.mark.parametrize(
    ("state", "action"), [("done", "replay"), ("executed", "executed"), ("unknown", "unknown")]
)
def test_what_has_ended_is_never_run_again(state, action):
    claim = replace(RUNNING, state=ClaimState(state))
    for alive in (True, False):
        assert judged(claim, alive=alive) == action
        assert judged(claim, now=NOW + KEPT_FOR - 1, alive=alive) == action


@pytest.mark.parametrize("state", ClaimState)
def test_other_arguments_are_a_conflict(state):
    for alive in (True, False):
        assert judged(replace(RUNNING, state=state), "other", alive=alive) == "conflict"


def test_after_a_crash_it_is_not_silently_run_again():
    assert judged(RUNNING, alive=False) == "unknown"
    assert judged(RUNNING, now=NOW + 10 * KEPT_FOR, alive=False) == "unknown"


def test_keys_are_kept_for_a_day():
    assert KEPT_FOR == 86_400
    done = replace(RUNNING, state=ClaimState.DONE)
    assert judged(done, now=NOW + KEPT_FOR) == "run"
    assert judged(done, "other", now=NOW + KEPT_FOR) == "run"
    assert judged(RUNNING, now=NOW + 2 * KEPT_FOR) == "wait"


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        ({}, "release"),
        ({"was_sent": True}, "mark_unknown"),
        ({"was_sent": True, "was_answered": True, "size": 10}, "keep"),
        ({"was_sent": True, "was_answered": True, "size": MAX_RESULT}, "keep"),
        ({"was_sent": True, "was_answered": True, "size": MAX_RESULT + 1}, "mark_executed"),
        ({"was_sent": True, "was_answered": True, "is_parked": True}, "hold"),
    ],
)
def test_how_a_call_ended_says_what_becomes_of_its_claim(facts, end):
    given = {"was_sent": False, "was_answered": False, "is_parked": False, "size": 0, **facts}
    assert settle_claim(**given).value == end


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "\0"])
def test_a_key_that_cannot_be_kept_is_refused(key):
    assert "255" in (check_key(key) or "")


@pytest.mark.parametrize("key", ["k", "x" * 255, "idemp-67890", "é 1"])
def test_any_other_key_is_fine(key):
    assert check_key(key) is None


@pytest.mark.bulk
def test_whatever_happens_a_call_runs_once_unless_it_was_not_sent():
    """Callers, crashes and restarts at random: the ledger is the judge."""
    dice = random.Random(12)
    for _ in range(2_000):
        claim, executions, owner_alive = None, 0, True
        for step in range(20):
            is_running = claim is not None and claim.state is ClaimState.RUNNING
            if is_running and owner_alive and dice.random() < 0.2:
                owner_alive = False  # it crashed; nobody knows whether it had run
                executions += dice.randrange(2)
            action = judge_claim(claim, "hash", NOW + step, is_owner_alive=owner_alive)
            if action is not ClaimAction.RUN:
                continue
            owner_alive = True
            claim = replace(RUNNING, made_at=NOW + step)
            if dice.random() < 0.3:
                continue  # it takes a while
            sent = dice.random() < 0.5
            answered = sent and dice.random() < 0.5
            executions += answered or (sent and dice.randrange(2))
            end = settle_claim(was_sent=sent, was_answered=answered, is_parked=False, size=1)
            states = {ClaimEnd.KEEP: ClaimState.DONE, ClaimEnd.MARK_UNKNOWN: ClaimState.UNKNOWN}
            claim = None if end is ClaimEnd.RELEASE else replace(claim, state=states[end])
        assert executions <= 1
