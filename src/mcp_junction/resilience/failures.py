"""Failure: how one attempt of a call failed, as far as retries and breakers care.

One table says of each kind whether it may be tried again, whether the server refused the call
before it ran, and which breaker counts it. Where an outcome is made it is said which failure it is
(``upstream/outcome.py``); ``calls/failures.py`` reads it.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

import msgspec


class FailureKind(StrEnum):
    """What went wrong."""

    LINK = "link"  # the connection was refused, or lost
    TIMEOUT = "timeout"  # the attempt's own time was over
    SERVER_FAULT = "server_fault"  # HTTP 5xx
    BUSY = "busy"  # HTTP 503 with Retry-After
    RATE_LIMITED = "rate_limited"  # HTTP 429
    SESSION_LOST = "session_lost"  # HTTP 404 to a session that the server has forgotten
    CREDENTIAL = "credential"  # HTTP 401 or 403 that a renewed credential may mend
    UNAVAILABLE = "unavailable"  # there was no link, and none came in time
    CIRCUIT_OPEN = "circuit_open"  # a breaker did not let it through
    REFUSED = "refused"  # an error that the same call would meet again: parameters, other 4xx
    TOOL_ERROR = "tool_error"  # the tool's own isError result
    CALLER_DEADLINE = "caller_deadline"  # the caller gave it less time than the server may take
    CANCELLED = "cancelled"
    OWN_REFUSAL = "own_refusal"  # Junction did not send it: the policy, a limit, the audit


REFUSED_BEFORE_RUNNING: Final = frozenset({FailureKind.RATE_LIMITED, FailureKind.SESSION_LOST})
"""What a server answers in place of running a call."""


class BreakerScope(Enum):
    """Which breaker counts a failure: the tool's, the server's or none."""

    NONE = "none"
    TOOL = "tool"
    SERVER = "server"


class _Traits(NamedTuple):
    is_transient: bool = False
    counts: BreakerScope = BreakerScope.NONE
    has_answer: bool = False
    """Whether it shows that the server answers."""


_SERVER, _TOOL = BreakerScope.SERVER, BreakerScope.TOOL
_TRAITS: Final = {
    FailureKind.LINK: _Traits(True, _SERVER),
    FailureKind.TIMEOUT: _Traits(True, _TOOL),
    FailureKind.SERVER_FAULT: _Traits(True, _TOOL, True),
    FailureKind.BUSY: _Traits(True, _TOOL, True),
    FailureKind.RATE_LIMITED: _Traits(True, has_answer=True),
    FailureKind.SESSION_LOST: _Traits(True, has_answer=True),
    FailureKind.CREDENTIAL: _Traits(True, has_answer=True),
    FailureKind.UNAVAILABLE: _Traits(),
    FailureKind.CIRCUIT_OPEN: _Traits(),
    FailureKind.REFUSED: _Traits(has_answer=True),
    FailureKind.TOOL_ERROR: _Traits(has_answer=True),
    FailureKind.CALLER_DEADLINE: _Traits(),
    FailureKind.CANCELLED: _Traits(),
    FailureKind.OWN_REFUSAL: _Traits(),
}


class Failure(msgspec.Struct, frozen=True):
    """How an attempt failed."""

    kind: FailureKind
    was_sent: bool = True
    """Whether any byte of it was handed to the transport."""
    retry_after: float | None = None
    """Seconds that the server asked us to wait."""
    is_renewed: bool = False
    """For ``CREDENTIAL``: whether the credential was renewed since."""

    @property
    def is_transient(self) -> bool:
        """Whether trying again could help."""
        return _TRAITS[self.kind].is_transient

    @property
    def counts(self) -> BreakerScope:
        """Which breaker counts it."""
        return _TRAITS[self.kind].counts

    @property
    def has_answer(self) -> bool:
        """Whether it shows that the server answers."""
        return _TRAITS[self.kind].has_answer
