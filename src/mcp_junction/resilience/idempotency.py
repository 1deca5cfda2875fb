"""Claim: the rules of idempotency keys (R-IDEMPOTENCY): who runs a call, waits, or is answered.

    no claim ──▶ RUNNING ──an answer came──▶ DONE, or EXECUTED when its result is too large to keep
                    │ └──── not sent ──▶ no claim: the next one may run it
                    └── nobody knows, or its process is gone ──▶ UNKNOWN: it is not run again

A key belongs to one agent and tool, and is bound to the hash of the arguments. A parked call keeps
its claim running. This says what to do; the store makes the claim, so that of two racing calls one
gets it, and keeps the sealed result.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

KEPT_FOR: Final = 24 * 3600.0
"""Seconds that a claim is kept after it was made."""
MAX_RESULT: Final = 1024 * 1024
"""Bytes of the largest result that is kept."""
MAX_KEY: Final = 255
"""Characters of the longest key."""


class ClaimState(StrEnum):
    RUNNING = "running"
    DONE = "done"  # its result is kept
    EXECUTED = "executed"  # it ran, and its result was too large to keep
    UNKNOWN = "unknown"  # it may have run


class ClaimKey(NamedTuple):
    """Whose claim it is, and for what."""

    agent_id: str
    server_id: str
    tool_name: str
    key: str


def owner_of(agent_id: str, role: str = "agent") -> str:
    """Return how a claim names whose it is: others than agents may have an agent's id."""
    return f"{role}:{agent_id}"


class Claim(msgspec.Struct, frozen=True):
    """A claim on running a call, as it is stored."""

    key: ClaimKey
    arguments: str
    """The canonical hash of the arguments."""
    state: ClaimState
    owner: str
    """The process that runs it; its heartbeat is the lease."""
    made_at: float

    def is_kept(self, now: float) -> bool:
        """Whether it still counts; one that is running counts for as long as it runs."""
        return self.state is ClaimState.RUNNING or now < self.made_at + KEPT_FOR


class ClaimAction(StrEnum):
    """What a call with a key is to do."""

    RUN = "run"  # claim it, and run it
    WAIT = "wait"  # for the first one, within its own deadline
    REPLAY = "replay"  # answer with the kept result
    CONFLICT = "conflict"  # the key was used with other arguments
    EXECUTED = "executed"  # it ran, and its result was not kept
    UNKNOWN = "unknown"  # it may have run: delivery unknown


class ClaimEnd(StrEnum):
    """What becomes of a claim when its call has ended."""

    RELEASE = "release"
    KEEP = "keep"
    MARK_EXECUTED = "mark_executed"
    MARK_UNKNOWN = "mark_unknown"
    HOLD = "hold"


_BY_STATE: Final = {
    ClaimState.DONE: ClaimAction.REPLAY,
    ClaimState.EXECUTED: ClaimAction.EXECUTED,
    ClaimState.UNKNOWN: ClaimAction.UNKNOWN,
}


def judge_claim(
    existing: Claim | None, arguments: str, now: float, *, is_owner_alive: bool
) -> ClaimAction:
    """Judge what a call does whose key has this claim; ``arguments`` is its own hash."""
    if existing is None or not existing.is_kept(now):
        return ClaimAction.RUN
    if existing.arguments != arguments:
        return ClaimAction.CONFLICT
    if existing.state is ClaimState.RUNNING:
        return ClaimAction.WAIT if is_owner_alive else ClaimAction.UNKNOWN
    return _BY_STATE[existing.state]


def settle_claim(*, was_sent: bool, was_answered: bool, is_parked: bool, size: int) -> ClaimEnd:
    """Say what becomes of a claim; ``size`` is that of the answer, a tool's error being one.

    A call that was retried counts as sent when any of its attempts was.
    """
    if is_parked:
        return ClaimEnd.HOLD
    if was_answered:
        return ClaimEnd.KEEP if size <= MAX_RESULT else ClaimEnd.MARK_EXECUTED
    return ClaimEnd.MARK_UNKNOWN if was_sent else ClaimEnd.RELEASE


def check_key(key: str) -> str | None:
    """Return what is wrong with an idempotency key; None when it is fine."""
    if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        return f"an idempotency key must be 1 to {MAX_KEY} printable characters; make one up anew"
    return None
