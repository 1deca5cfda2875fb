"""Names the outcome of a call for those who are told of it: the audit, the bus and sinks."""

from __future__ import annotations

from typing import Final

from mcp_junction.calls.call import Call
from mcp_junction.protocol.envelope import is_tool_error
from mcp_junction.protocol.versions import DENIED
from mcp_junction.telemetry.events import OutcomeName
from mcp_junction.upstream.outcome import CANCELLED, ERROR, RESULT, SUSPENDED, Delivery, Outcome

CALL_TOOL: Final = "tools/call"

# For the call path, see protocol/versions.py.
_OK: Final = OutcomeName.OK
_BY_KIND: Final = {
    SUSPENDED: OutcomeName.INPUT_REQUIRED,
    ERROR: OutcomeName.ERROR,
    CANCELLED: OutcomeName.CANCELLED,
}


def outcome_name(call: Call, outcome: Outcome) -> OutcomeName:
    """Name how a call ended; reads a tool's result to see whether the tool failed."""
    name = outcome_name_unread(outcome)
    if name is _OK and call.method == CALL_TOOL and is_tool_error(outcome.payload):
        return OutcomeName.TOOL_ERROR
    return name


def outcome_name_unread(outcome: Outcome) -> OutcomeName:
    """Name how a call ended without reading its result: a tool's own error counts as ``ok``."""
    if outcome.kind is RESULT:
        return _OK
    if outcome.kind is ERROR and outcome.delivery is Delivery.NOT_SENT and outcome.code == DENIED:
        return OutcomeName.DENIED  # ours: a server's own error has no delivery here
    return _BY_KIND[outcome.kind]
