"""Carried: what a request says about its call beside the params that go to the server.

REST has it in the body, HTTP in headers, MCP in members of ``_meta`` that begin with ``junction/``.
They are taken out where a request is accepted, before anything is logged, hashed, cached or
forwarded.
"""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from mcp_junction.policy.tokens import PresentedToken


class Carried(msgspec.Struct, frozen=True, gc=False):
    """What a call carries for us, and no server sees."""

    agent_id: str | None = None
    """The agent that it is made for, by an administrator or an orchestrator."""
    correlation_id: str | None = None
    """The caller's own; where there is none, Junction makes one."""
    ticket_id: str | None = None
    task_id: str | None = None
    idempotency_key: str | None = None
    token: PresentedToken | None = None
    timeout: float = 0.0
    """Seconds after which the call ends; 0 is no limit of the caller's."""


NOTHING_CARRIED: Final = Carried()

SAME_BEGINNING: Final = 0.05
"""Seconds for which ids begin with the same time: to write it anew takes longer than the rest."""
_PROCESS: Final = secrets.token_hex(4)
_next: Final = itertools.count().__next__
_now: Final = time.time


class _Beginning:
    """The time that correlation ids begin with at the moment."""

    since = until = 0.0
    pattern = ""


def new_correlation_id() -> str:
    """Make a correlation id; it begins with the time, by which the audit finds it.

    That is the time in milliseconds, in hexadecimal, at most ``SAME_BEGINNING`` too early.
    """
    now = _now()
    if not _Beginning.since <= now < _Beginning.until:  # also if the clock was set back
        _Beginning.since, _Beginning.until = now, now + SAME_BEGINNING
        _Beginning.pattern = f"j{int(now * 1000):x}-{_PROCESS}-%x"
    return _Beginning.pattern % _next()
