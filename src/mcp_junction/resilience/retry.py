"""Retry: whether a failed attempt of a call is made again, and when (R-RETRY).

    repeated only if    not sent
                        or refused before it ran (429, lost session, 503 with Retry-After where the
                           operator trusts it, a credential that was renewed since); once in a
                           call, because a server may say so of a call that did run
                        or the tool is read-only or idempotent
    and                 the failure is transient, attempts are left, nothing was relayed to the
                        caller, the deadline is further away than the delay, it is no resume, and
                        the server's retry budget allows it

It decides; the stage waits and makes the attempt. What is mended by being made again at once (a
lost session, a renewed credential) is made again once, for any tool, and costs no budget.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from mcp_junction.resilience.backoff import retry_delay
from mcp_junction.resilience.failures import Failure, FailureKind

BUDGET_SHARE: Final = 0.1
"""Retries per call that a server's budget allows."""
BUDGET_RATE: Final = 1.0
"""Retries per second that it allows beside them."""
_SAVED_SECONDS: Final = 10.0
_SAVED_BY_CALLS: Final = 100.0
_REPLAYED_ONCE: Final = (FailureKind.SESSION_LOST, FailureKind.CREDENTIAL)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and after how long a call is tried again; times in seconds."""

    max_attempts: int = 3
    base: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0


class RepeatHints(msgspec.Struct, frozen=True):
    """What is known of whether a tool can be called twice without harm."""

    read_only: bool | None = None
    """The operator's word; None when there is none."""
    idempotent: bool | None = None
    annotated_read_only: bool = False
    annotated_idempotent: bool = False
    trusts_annotations: bool = False
    """Whether the operator trusts the annotations of the tool's server."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be called again although it may have run."""
        if self.read_only or self.idempotent:
            return True
        if not self.trusts_annotations:
            return False
        by_reading = self.annotated_read_only and self.read_only is None
        return by_reading or (self.annotated_idempotent and self.idempotent is None)


class RetryReason(StrEnum):
    """Why a call is tried again, or is not."""

    NOT_SENT = "it was not sent"
    REFUSED_BEFORE = "it was refused before it ran"
    REPEATABLE = "the tool is read-only or idempotent"
    PERMANENT = "to try again would not help"
    MAY_HAVE_RUN = "it may have run"
    RESUMED = "it is the continuation of a call"
    SPOKE = "something was relayed to the caller"
    ATTEMPTS = "no attempts are left"
    REPLAYED = "it was replayed before"
    TOO_LONG = "the server asks for a longer wait than the longest delay"
    DEADLINE = "its deadline comes first"
    BUDGET = "the server's retry budget is used up"


REFUSED_BEFORE: Final = RetryReason.REFUSED_BEFORE


class Retry(msgspec.Struct, frozen=True):
    """Whether to try again, after how many seconds, and why."""

    again: bool
    reason: RetryReason
    delay: float = 0.0


class RetryBudget:
    """What one server may be given in retries: 10 % of its calls, and one a second.

    Unused seconds are saved up to ten, unused shares of calls up to a hundred retries, so that an
    outage after a quiet hour does not meet a flood.
    """

    __slots__ = ("_at", "_by_calls", "_by_seconds", "calls")

    def __init__(self, now: float) -> None:
        self._at = now
        self._by_seconds = _SAVED_SECONDS
        self._by_calls = 0.0
        self.calls = 0
        """Calls since the budget was last looked at; whoever makes one counts it. Its retries are
        not counted."""

    def spend(self, now: float) -> bool:
        """Take one retry out of the budget; False when there is none."""
        passed = max(0.0, now - self._at)
        self._at = now
        self._by_seconds = min(_SAVED_SECONDS, self._by_seconds + passed * BUDGET_RATE)
        self._by_calls = min(_SAVED_BY_CALLS, self._by_calls + self.calls * BUDGET_SHARE)
        self.calls = 0
        if self._by_seconds >= 1.0:
            self._by_seconds -= 1.0
            return True
        if self._by_calls >= 1.0 - 1e-9:  # ten times 0.1 is a little less than 1
            self._by_calls -= 1.0
            return True
        return False


def decide_retry(
    failure: Failure,
    attempts: int,
    policy: RetryPolicy,
    budget: RetryBudget,
    now: float,
    *,
    is_repeatable: bool,
    random: Callable[[], float],
    deadline: float | None = None,
    spoke: bool = False,
    is_resume: bool = False,
    was_replayed: bool = False,
    trusts_retry_after: bool = False,
) -> Retry:
    """Decide after ``attempts`` attempts (1 after the first); takes a retry out of the budget.

    ``was_replayed`` says that the call was made again before because the server refused it before
    it ran; ``trusts_retry_after`` that the operator says a 503 with Retry-After was refused so.
    """
    reason = _find_reason(failure, is_repeatable, trusts_retry_after)
    if reason in (RetryReason.PERMANENT, RetryReason.MAY_HAVE_RUN):
        return Retry(False, reason)
    if is_resume:
        return Retry(False, RetryReason.RESUMED)
    if spoke:
        return Retry(False, RetryReason.SPOKE)
    if attempts >= policy.max_attempts:
        return Retry(False, RetryReason.ATTEMPTS)
    is_mended = failure.kind in _REPLAYED_ONCE
    if was_replayed and (is_mended or (reason is REFUSED_BEFORE and not is_repeatable)):
        return Retry(False, RetryReason.REPLAYED)
    if (failure.retry_after or 0.0) > policy.max_delay:
        return Retry(False, RetryReason.TOO_LONG)
    wait = _delay(failure, attempts, policy, random)
    if deadline is not None and now + wait >= deadline:
        return Retry(False, RetryReason.DEADLINE)
    if not is_mended and not budget.spend(now):
        return Retry(False, RetryReason.BUDGET)
    return Retry(True, reason, wait)


def _find_reason(failure: Failure, is_repeatable: bool, trusts_retry_after: bool) -> RetryReason:
    if not failure.is_transient or (
        failure.kind is FailureKind.CREDENTIAL and not failure.is_renewed
    ):
        return RetryReason.PERMANENT
    if not failure.was_sent:
        return RetryReason.NOT_SENT
    is_trusted_busy = failure.kind is FailureKind.BUSY and trusts_retry_after
    if is_trusted_busy or failure.kind in (FailureKind.RATE_LIMITED, *_REPLAYED_ONCE):
        return RetryReason.REFUSED_BEFORE
    return RetryReason.REPEATABLE if is_repeatable else RetryReason.MAY_HAVE_RUN


def _delay(
    failure: Failure, attempts: int, policy: RetryPolicy, random: Callable[[], float]
) -> float:
    """Seconds to wait: none once the cause is mended, else the backoff's or the server's."""
    if failure.kind in _REPLAYED_ONCE:
        return 0.0
    planned = retry_delay(attempts - 1, policy.base, policy.factor, policy.max_delay, random)
    return max(planned, failure.retry_after or 0.0)
