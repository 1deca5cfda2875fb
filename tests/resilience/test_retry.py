"""Retries: what may be made again, when, and how much of it a server is given."""

import itertools
import random

import pytest

from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.resilience.retry import (
    RepeatHints,
    Retry,
    RetryBudget,
    RetryPolicy,
    RetryReason,
    decide_retry,
)

NOW = 1_000.0
POLICY = RetryPolicy()
TIMEOUT = Failure(FailureKind.TIMEOUT)


def decide(failure: Failure, attempts: int = 1, **more) -> Retry:
    more.setdefault("is_repeatable", False)
    policy, budget = more.pop("policy", POLICY), more.pop("budget", RetryBudget(NOW))
    return decide_retry(failure, attempts, policy, budget, NOW, random=lambda: 0.5, **more)


def test_the_defaults_are_the_seeds():
    assert RetryPolicy() == RetryPolicy(3, 0.5, 2.0, 30.0)


# -- what may be made again


def test_what_was_not_sent_is_made_again():
    found = decide(Failure(FailureKind.LINK, was_sent=False))
    assert found == Retry(True, RetryReason.NOT_SENT, 0.5)


@pytest.mark.parametrize("kind", ["link", "timeout", "server_fault", "busy"])
def test_what_may_have_run_is_made_again_only_for_a_tool_that_allows_it(kind):
    failure = Failure(FailureKind(kind))
    assert decide(failure) == Retry(False, RetryReason.MAY_HAVE_RUN)
    assert decide(failure, is_repeatable=True).again


def test_what_was_refused_before_it_ran_is_made_again():
    assert decide(Failure(FailureKind.RATE_LIMITED)).reason is RetryReason.REFUSED_BEFORE
    assert decide(Failure(FailureKind.SESSION_LOST)) == Retry(True, RetryReason.REFUSED_BEFORE, 0.0)


def test_a_503_with_retry_after_was_refused_where_the_operator_says_so():
    busy = Failure(FailureKind.BUSY, retry_after=2.0)
    assert not decide(busy).again
    assert decide(busy, trusts_retry_after=True) == Retry(True, RetryReason.REFUSED_BEFORE, 2.0)


def test_a_credential_is_tried_again_once_it_was_renewed():
    old, new = (Failure(FailureKind.CREDENTIAL, is_renewed=renewed) for renewed in (False, True))
    assert decide(old, is_repeatable=True).reason is RetryReason.PERMANENT
    assert decide(new) == Retry(True, RetryReason.REFUSED_BEFORE, 0.0)


@pytest.mark.parametrize("kind", ["session_lost", "credential"])
def test_a_replay_is_made_once(kind):
    failure = Failure(FailureKind(kind), is_renewed=True)
    assert decide(failure, was_replayed=True) == Retry(False, RetryReason.REPLAYED)
    assert not decide(failure, was_replayed=True, is_repeatable=True).again
    spent = RetryBudget(NOW)
    while spent.spend(NOW):
        pass
    assert decide(failure, budget=spent).again, "it mends what was wrong: it costs no budget"


@pytest.mark.req("R-RETRY")
def test_a_tool_that_must_not_run_twice_is_made_again_once_after_refusals():
    limited = Failure(FailureKind.RATE_LIMITED)
    assert decide(limited, was_replayed=True) == Retry(False, RetryReason.REPLAYED)
    assert decide(limited, was_replayed=True, is_repeatable=True).again
    busy = Failure(FailureKind.BUSY, retry_after=2.0)
    assert not decide(busy, was_replayed=True, trusts_retry_after=True).again
    assert decide(Failure(FailureKind.LINK, was_sent=False), was_replayed=True).again


@pytest.mark.parametrize(
    "kind",
    ["refused", "tool_error", "cancelled", "caller_deadline", "unavailable", "circuit_open"],
)
def test_what_would_fail_again_is_not_made_again(kind):
    for was_sent in (True, False):
        found = decide(Failure(FailureKind(kind), was_sent=was_sent), is_repeatable=True)
        assert found == Retry(False, RetryReason.PERMANENT)


# -- what forbids it


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"is_resume": True}, RetryReason.RESUMED),
        ({"spoke": True}, RetryReason.SPOKE),
        ({"attempts": 3}, RetryReason.ATTEMPTS),
        ({"policy": RetryPolicy(max_attempts=1)}, RetryReason.ATTEMPTS),
        ({"deadline": NOW + 0.5}, RetryReason.DEADLINE),
        ({"deadline": NOW - 1}, RetryReason.DEADLINE),
    ],
)
def test_even_what_was_not_sent_is_not_made_again_then(facts, reason):
    assert decide(Failure(FailureKind.LINK, was_sent=False), **facts) == Retry(False, reason)


def test_it_waits_longer_each_time_and_as_long_as_the_server_asks():
    assert decide(TIMEOUT, 2, is_repeatable=True).delay == 1.0
    limited = Failure(FailureKind.RATE_LIMITED, retry_after=7.0)
    assert decide(limited).delay == 7.0
    assert decide(limited, deadline=NOW + 7).reason is RetryReason.DEADLINE
    assert decide(limited, deadline=NOW + 7.1).again


def test_a_server_that_asks_for_an_hour_is_not_waited_for():
    found = decide(Failure(FailureKind.RATE_LIMITED, retry_after=3_600.0))
    assert found == Retry(False, RetryReason.TOO_LONG)


def test_a_retry_that_is_not_made_costs_no_budget():
    budget = RetryBudget(NOW)
    for _ in range(100):
        decide(TIMEOUT, budget=budget)
        decide(TIMEOUT, budget=budget, is_repeatable=True, spoke=True)
    assert [decide(TIMEOUT, budget=budget, is_repeatable=True).again for _ in range(11)] == [
        *[True] * 10,
        False,
    ]
    assert decide(TIMEOUT, budget=budget, is_repeatable=True).reason is RetryReason.BUDGET


# -- which tools allow it


@pytest.mark.parametrize("facts", list(itertools.product([None, False, True], repeat=2)))
@pytest.mark.parametrize("annotations", list(itertools.product([False, True], repeat=3)))
def test_the_operators_word_counts_and_annotations_where_they_are_trusted(facts, annotations):
    read_only, idempotent = facts
    says_read_only, says_idempotent, trusted = annotations
    hints = RepeatHints(read_only, idempotent, says_read_only, says_idempotent, trusted)
    expected = bool(read_only or idempotent)
    if trusted and read_only is None and says_read_only:
        expected = True
    if trusted and idempotent is None and says_idempotent:
        expected = True
    assert hints.is_repeatable is expected


# -- the budget


def test_the_budget_is_a_tenth_of_the_calls_and_one_a_second():
    budget = RetryBudget(0.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 10  # what ten quiet seconds saved
    for _ in range(200):
        budget.calls += 1
    assert sum(budget.spend(0.0) for _ in range(100)) == 20
    assert sum(budget.spend(5.0) for _ in range(100)) == 5


def test_what_is_saved_is_bounded():
    budget = RetryBudget(0.0)
    for _ in range(100_000):
        budget.calls += 1
    assert sum(budget.spend(1e6) for _ in range(1_000)) == 110


@pytest.mark.bulk
def test_an_outage_does_not_double_the_load():
    dice = random.Random(8)
    budget, now, calls, retries = RetryBudget(0.0), 0.0, 0, 0
    for _ in range(50_000):
        now += dice.expovariate(50)
        calls += 1
        budget.calls += 1
        retries += sum(budget.spend(now) for _ in range(2))
        assert retries <= 0.1 * calls + now + 10 + 1e-6
    assert retries > 0.1 * calls


@pytest.mark.bulk
def test_a_clock_that_stands_still_or_goes_back_gives_nothing():
    budget = RetryBudget(100.0)
    assert sum(budget.spend(100.0) for _ in range(50)) == 10
    assert not budget.spend(50.0)


# -- the model


class Model:
    """R-RETRY once more, as the page says it, one sentence after the other."""

    def __init__(self) -> None:
        self.saved, self.share, self.at = 10.0, 0.0, 0.0

    def afford(self, now: float) -> bool:
        self.saved = min(10.0, self.saved + max(0.0, now - self.at))
        self.at = now
        for pot in ("saved", "share"):
            if getattr(self, pot) > 1 - 1e-6:
                setattr(self, pot, getattr(self, pot) - 1)
                return True
        return False

    def again(self, kind, sent, after, renewed, attempts, repeatable, now, **facts) -> bool:
        refused_before = kind == "rate_limited" or kind == "session_lost"
        refused_before |= kind == "busy" and facts["trusts"]
        refused_before |= kind == "credential" and renewed
        counted = kind in ("link", "timeout", "server_fault", "busy")
        if not (counted or refused_before):
            return False
        if sent and not refused_before and not repeatable:
            return False
        if facts["resume"] or facts["spoke"] or attempts >= 3:
            return False
        is_replay = kind in ("session_lost", "credential")
        once = is_replay or (sent and refused_before and not repeatable)
        if (once and facts["replayed"]) or (after or 0) > 30:
            return False
        wait = 0.0 if is_replay else max(0.5 * 2 ** (attempts - 1), after or 0)
        if facts["deadline"] is not None and now + wait >= facts["deadline"]:
            return False
        return is_replay or self.afford(now)


@pytest.mark.bulk
def test_a_hundred_thousand_decisions_agree_with_the_model():
    dice = random.Random(21)
    model, budget, now, made = Model(), RetryBudget(0.0), 0.0, 0
    kinds, coin = list(FailureKind), (False, True)
    for _ in range(100_000):
        now += dice.random()
        if dice.random() < 0.5:
            budget.calls += 1
            model.share = min(100.0, model.share + 0.1)
        kind, sent, renewed = dice.choice(kinds), dice.choice(coin), dice.choice(coin)
        after = dice.choice([None, None, 1.0, 20.0, 31.0])
        attempts, repeatable = dice.randrange(1, 5), dice.choice(coin)
        deadline = dice.choice([None, now + dice.random() * 5])
        spoke, resume = dice.random() < 0.1, dice.random() < 0.1
        replayed, trusts = dice.choice(coin), dice.choice(coin)
        found = decide_retry(
            Failure(kind, sent, after, renewed),
            attempts,
            POLICY,
            budget,
            now,
            is_repeatable=repeatable,
            random=lambda: 0.5,
            deadline=deadline,
            spoke=spoke,
            is_resume=resume,
            was_replayed=replayed,
            trusts_retry_after=trusts,
        )
        expected = model.again(
            kind.value, sent, after, renewed, attempts, repeatable, now,
            deadline=deadline, spoke=spoke, resume=resume, replayed=replayed, trusts=trusts,
        )  # fmt: skip
        assert found.again is expected, (kind, sent, after, renewed, attempts, found)
        if found.again:
            made += 1
            assert deadline is None or now + found.delay < deadline
    assert made > 5_000
