"""OutcomeName: how a call ended, and the event that tells of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

CALL_COMPLETED: Final = "call.completed"
"""The event of each call's end. It is sent to those who read the bus, and not stored."""


class OutcomeName(StrEnum):
    """How a call, or another act that is recorded, ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"  # the tool ran, and its result says that it failed (``isError``)
    ERROR = "error"  # it failed: a JSON-RPC error, a lost link, a timeout, an unknown name
    DENIED = "denied"  # the caller has no right to it
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"  # the client was asked something; the call goes on after it
    UNKNOWN = "unknown"  # the process died before it could tell
