"""CallEnded: the one event that each call leaves, and the sinks that are given it.

Sinks are plain functions, passed where Junction is put together: the audit, the health of servers,
the bus, the debug log. They are called on the path of every call: they must cost next to nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Carried
from mcp_junction.catalog.items import Route
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.envelope import is_tool_error
from mcp_junction.protocol.versions import DENIED, INVALID_PARAMS, RESOURCE_NOT_FOUND
from mcp_junction.telemetry.events import OutcomeName
from mcp_junction.upstream.outcome import CANCELLED, ERROR, RESULT, SUSPENDED, Delivery, Outcome

if TYPE_CHECKING:  # the stdio mode does without them
    from mcp_junction.policy.arguments import Arguments
    from mcp_junction.policy.decision import PolicyDecision

log = logging.getLogger("mcp_junction.telemetry")

CALL_TOOL: Final = "tools/call"

# For the call path, see protocol/versions.py.
_OK: Final = OutcomeName.OK
_NAMING: Final = (Role.ADMIN, Role.ORCHESTRATOR)
"""The roles that may call in another's name."""
_BY_KIND: Final = {
    SUSPENDED: OutcomeName.INPUT_REQUIRED,
    ERROR: OutcomeName.ERROR,
    CANCELLED: OutcomeName.CANCELLED,
}
_NOT_FOUND: Final = (INVALID_PARAMS, RESOURCE_NOT_FOUND)


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """One routed request has its outcome, whichever that is."""

    principal: Principal
    method: str
    name: str
    """The name or address that the caller used."""
    route: Route | None
    """Where it led; None for an unknown name and for Junction's own tools."""
    is_own: bool
    """Whether it was for one of Junction's own tools."""
    arguments: Raw | None
    outcome: Outcome
    seconds: float
    waited: float = 0.0
    """How many of the seconds its attempts waited for a link."""
    denial: str | None = None
    """Why the policy refused it, if it did."""
    intent: str | None = None
    """Its intent: the audit row that was stored before it was sent."""
    decision: PolicyDecision | None = None
    """What the policy decided about it, where there is one."""
    carried: Carried = NOTHING_CARRIED
    correlation_id: str = ""
    routing_seconds: float = -1.0
    """How long it took until the first attempt, waiting for a link included; less than 0 if
    nothing was sent."""
    read_tool_error: bool | None = None
    """Whether the tool's result says that the tool failed, where that was read already."""
    read: Arguments | None = None
    """What its arguments are, where they were read already."""
    hidden: Route | None = None
    """What the name leads to that the caller may not see: to the caller it is unknown."""

    @property
    def agent_id(self) -> str:
        """Under whose name it was made; a name that the caller had no right to use is ignored."""
        named, principal = self.carried.agent_id, self.principal
        return principal.id if named is None or principal.role not in _NAMING else named

    @property
    def is_unknown(self) -> bool:
        """Whether what it was for does not exist, as far as the caller can see."""
        outcome = self.outcome
        if self.route is not None or self.is_own or outcome.kind is not ERROR:
            return False
        return outcome.delivery is Delivery.NOT_SENT and outcome.code in _NOT_FOUND

    @property
    def fallback(self) -> str | None:
        """The canonical name of what was called in place of what was asked for, if anything."""
        target, route = self.outcome.target, self.route
        return target if target and route is not None and target != route.canonical else None

    @property
    def server_id(self) -> str | None:
        return None if self.route is None else self.route.upstream.definition.id

    @property
    def target(self) -> str:
        """The canonical name of what was called, or would have been; else the caller's own."""
        if self.outcome.target:
            return self.outcome.target
        return self.name if self.route is None else self.route.canonical

    @property
    def outcome_name(self) -> OutcomeName:
        """How it ended; reads a tool's result to see whether the tool failed."""
        name = self.outcome_name_unread
        return OutcomeName.TOOL_ERROR if name is _OK and self.is_tool_error else name

    @property
    def is_tool_error(self) -> bool:
        """Whether it is a result of a tool that says that the tool failed."""
        if self.read_tool_error is not None:
            return self.read_tool_error
        outcome = self.outcome
        is_result = outcome.kind is RESULT and self.method == CALL_TOOL
        return is_result and is_tool_error(outcome.payload)

    @property
    def outcome_name_unread(self) -> OutcomeName:
        """How it ended, without reading its result: a tool's own error counts as ``ok``."""
        outcome = self.outcome
        if outcome.kind is RESULT:
            return _OK
        is_refused = outcome.kind is ERROR and outcome.delivery is Delivery.NOT_SENT
        if is_refused and outcome.code == DENIED:
            return OutcomeName.DENIED  # ours: a server's own error has no delivery here
        return _BY_KIND[outcome.kind]


CallSink = Callable[[CallEnded], None]


def log_call(ended: CallEnded) -> None:
    """Write a call to the debug log."""
    outcome, route = ended.outcome, ended.route
    delivery = f", {outcome.delivery.value}" if outcome.delivery is not None else ""
    where = f"server {route.pair.server!r}" if route is not None else "no server"
    words = "%s of %.200r at %s: %s%s after %.1f ms%s"
    waited = f", waited {ended.waited * 1000:.1f} ms for a connection" if ended.waited else ""
    name, took = ended.target.partition("?")[0], ended.seconds * 1000  # an address may hold a key
    log.debug(words, ended.method, name, where, ended.outcome_name.value, delivery, took, waited)
