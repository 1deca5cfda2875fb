"""Which failure an outcome is: told where it is made, never read out of words."""

import pytest

from mcp_junction.calls.failures import find_failure, may_have_run, was_answered
from mcp_junction.protocol.versions import DENIED, INTERNAL_ERROR
from mcp_junction.resilience.failures import BreakerScope, Failure, FailureKind
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.http.refusals import read_failure, read_retry_after
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

NOT_SENT, UNKNOWN, EXECUTED = Delivery
OWN_ERROR = outcomes.refused(b'{"code":-32602,"message":"no"}')


@pytest.mark.parametrize(
    ("outcome", "kind", "was_sent"),
    [
        (outcomes.link_lost("s", UNKNOWN, "cut"), "link", True),
        (outcomes.link_lost("s", NOT_SENT, "cut"), "link", False),
        (outcomes.unavailable("s", "refused", outcomes.LINK_FAILED), "link", False),
        (outcomes.unavailable("s", "it is down"), "unavailable", False),
        (outcomes.overloaded("s", 7), "unavailable", False),
        (outcomes.timed_out("s", UNKNOWN, 1.0), "timeout", True),
        (outcomes.timed_out("s", NOT_SENT, 1.0), "unavailable", False),
        (outcomes.timed_out("s", UNKNOWN, 1.0, outcomes.CALLER_DEADLINE), "caller_deadline", True),
        (outcomes.cancelled("never mind", UNKNOWN), "cancelled", True),
        (outcomes.failed(DENIED, "no", NOT_SENT), "own_refusal", False),
        (outcomes.failed(INTERNAL_ERROR, "damaged", EXECUTED), "refused", True),
        (OWN_ERROR, "refused", True),
    ],
)
def test_each_outcome_says_which_failure_it_is(outcome, kind, was_sent):
    failure = find_failure(outcome.counted(2, "s:t"))
    assert (failure.kind, failure.was_sent) == (kind, was_sent)


@pytest.mark.parametrize("kind", [OutcomeKind.RESULT, OutcomeKind.SUSPENDED])
def test_an_answer_is_no_failure(kind):
    assert find_failure(Outcome(kind, b"{}")) is None


@pytest.mark.parametrize(
    ("status", "headers", "has_session", "kind"),
    [
        (429, {b"retry-after": b"7"}, False, "rate_limited"),
        (500, {}, False, "server_fault"),
        (503, {}, False, "server_fault"),
        (503, {b"retry-after": b"7"}, False, "busy"),
        (504, {b"retry-after": b"7"}, False, "server_fault"),
        (404, {}, True, "session_lost"),
        (404, {}, False, "refused"),
        (401, {}, True, "credential"),
        (403, {}, False, "credential"),
        (400, {}, True, "refused"),
    ],
)
def test_an_http_status_says_which_failure_it_is(status, headers, has_session, kind):
    failure = read_failure(status, headers, is_session_lost=has_session and status == 404)
    assert failure.kind == kind
    assert failure.retry_after == (7.0 if headers else None)
    assert (failure.counts is BreakerScope.NONE) == (status < 500)


def test_a_server_may_say_how_long_to_wait_in_seconds_or_by_a_date():
    assert read_retry_after({}) is None
    assert read_retry_after({b"retry-after": b" 12 "}) == 12.0
    assert read_retry_after({b"retry-after": b"9" * 400}) == 1e9
    assert read_retry_after({b"retry-after": b"soon"}) is None
    assert read_retry_after({b"retry-after": b"Thu, 01 Jan 1970 00:00:00 GMT"}) == 0.0
    assert read_retry_after({b"retry-after": b"Thu, 01 Jan 2099 00:00:00 GMT"}) == 1e9


def test_what_ran_and_what_was_refused_before_it_ran_are_told_apart():
    limited = outcomes.refused(b"{}", Failure(FailureKind.RATE_LIMITED))
    assert was_answered(OWN_ERROR)
    assert may_have_run(OWN_ERROR)
    assert not was_answered(limited)
    assert not may_have_run(limited)
    assert not was_answered(outcomes.link_lost("s", UNKNOWN, "cut"))
    assert may_have_run(outcomes.link_lost("s", UNKNOWN, "cut"))
    assert not may_have_run(outcomes.unavailable("s", "away"))


def test_another_delivery_is_also_told_in_the_data():
    changed = outcomes.unavailable("s", "away").with_delivery(UNKNOWN)
    assert changed.delivery is UNKNOWN
    assert b'"delivery":"unknown"' in changed.payload
    assert b'"server"' in changed.payload
    assert changed.code == outcomes.unavailable("s", "away").code
