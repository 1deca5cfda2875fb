"""OutcomeName: how a call, an act or a decision ended, in the words that outsiders read.

Audit rows, ``call.completed`` events, sinks and commands all use these names and no others. Rows
that were written before they existed say ``success`` where these say ``ok``. How a call ended for
the code that handles it is an ``upstream.outcome.Outcome``.
"""

from __future__ import annotations

from enum import StrEnum


class OutcomeName(StrEnum):
    """How something ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"  # the tool ran, and its result says that it failed (``isError``)
    ERROR = "error"  # it failed: a JSON-RPC error, a lost link, a timeout, an unknown name
    DENIED = "denied"  # the caller has no right to it
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"  # the client was asked something; the call goes on after it
    UNKNOWN = "unknown"  # the process died before it could tell
