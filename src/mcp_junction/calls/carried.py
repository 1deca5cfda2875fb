"""Carried: what a request says about its call beside the params that go to the server.

REST has it in the body, HTTP in headers, MCP in members of ``_meta`` that begin with ``junction/``.
They are taken out where a request is accepted, before anything is logged, hashed, cached or
forwarded.
"""

from __future__ import annotations

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
    traceparent: str | None = None
    """The caller's place in a trace, where a header of its request says it."""
    timeout: float = 0.0
    """Seconds after which the call ends; 0 is no limit of the caller's."""


NOTHING_CARRIED: Final = Carried()
