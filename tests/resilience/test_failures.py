"""Failures: each kind has its place in the one table."""

import pytest

from mcp_junction.resilience.failures import BreakerScope, Failure, FailureKind


@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_is_in_the_table(kind):
    failure = Failure(kind)
    assert isinstance(failure.is_transient, bool)
    assert isinstance(failure.counts, BreakerScope)


def test_breakers_count_what_was_ruled():
    counted = {kind: Failure(kind).counts for kind in FailureKind}
    assert {k for k, where in counted.items() if where is BreakerScope.SERVER} == {"link"}
    assert {k for k, where in counted.items() if where is BreakerScope.TOOL} == {
        "timeout",
        "server_fault",
        "busy",
    }


def test_what_is_counted_is_transient_and_so_is_what_was_refused_before_it_ran():
    transient = {kind for kind in FailureKind if Failure(kind).is_transient}
    counted = {kind for kind in FailureKind if Failure(kind).counts is not BreakerScope.NONE}
    assert transient == counted | {"rate_limited", "session_lost", "credential"}
