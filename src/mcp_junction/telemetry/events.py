"""ServerChanged, the event of a server's change of state, and its sinks; OutcomeName: how a call
ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec


class OutcomeName(StrEnum):
    """How something ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"  # the tool ran, and its result says that it failed (``isError``)
    ERROR = "error"  # it failed: a JSON-RPC error, a lost link, a timeout, an unknown name
    DENIED = "denied"  # the caller has no right to it
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"  # the client was asked something; the call goes on after it
    UNKNOWN = "unknown"  # the process died before it could tell


log = logging.getLogger("mcp_junction.telemetry")


class ServerChanged(msgspec.Struct, frozen=True):
    """A server went from one state to another."""

    server: str
    state: str
    detail: str | None = None


Sink = Callable[[ServerChanged], None]


def tell(event: ServerChanged) -> None:
    """Write the change of a server to the debug log."""
    more = f": {event.detail}" if event.detail else ""
    log.debug("server %r is %s%s", event.server, event.state, more)


def fan_out(sinks: Sequence[Sink]) -> Sink | None:
    """One sink that feeds many, or None when nobody listens; the log listens when it is asked to
    hold everything."""
    if log.isEnabledFor(logging.DEBUG):
        sinks = [*sinks, tell]
    if not sinks:
        return None

    def emit(event: ServerChanged) -> None:
        for sink in sinks:
            try:
                sink(event)
            except Exception:  # a server lives on whatever becomes of the news of it
                log.exception("a sink failed")

    return emit
