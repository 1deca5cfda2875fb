"""JudgedCall: what the conditions of grants can read of a call.

Its arguments are read in one way only, or refused, because they are sent as they are. Completions,
tasks and subscriptions have none to be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import COMPLETE, OF_TASKS, SUBSCRIBING
from mcp_junction.policy.arguments import Arguments
from mcp_junction.protocol import frames

_UNJUDGED: Final = frozenset((COMPLETE, *OF_TASKS, *SUBSCRIBING))


class JudgedCall(msgspec.Struct, frozen=True):
    """A call as the policy reads it."""

    call: Call
    arguments: Arguments | None = None
    """Of a fallback target, what it is sent in place of the caller's."""

    def read_arguments(self) -> Arguments | None:
        """Return the arguments that are sent. Raises ArgumentsError."""
        if self.arguments is not None:
            return self.arguments
        return None if self.call.method in _UNJUDGED else self.call.read_arguments()

    def read_field(self, name: str) -> str | None:
        """Return a field of ``request``."""
        call = self.call
        if name == "endpoint":
            return call.caller.endpoint.name
        if name == "client":
            return frames.text(frames.members(call.caller.hello().client).get("name"))
        if name == "correlation_id":
            return call.correlation_id
        return call.carried.ticket_id if name == "ticket_id" else call.carried.task_id

    def read_claims(self) -> Mapping[str, Any]:
        """Return what the credential of the acting agent claims; nobody speaks for another."""
        principal = self.call.caller.principal
        is_own = self.call.carried.agent_id in (None, principal.id)
        return principal.claims.values if is_own else {}
