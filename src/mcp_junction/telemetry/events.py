"""Events for sinks, which are plain functions; and OutcomeName: how a call ended.

Events name tools canonically and hold no payloads, so no secrets.
"""

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


class CallCompleted(msgspec.Struct, frozen=True):
    """One routed request has ended, whichever way."""

    principal: str
    method: str
    server: str | None
    name: str
    outcome: str
    delivery: str | None
    seconds: float


class ServerChanged(msgspec.Struct, frozen=True):
    """A server went from one state to another."""

    server: str
    state: str
    detail: str | None = None


Event = CallCompleted | ServerChanged
Sink = Callable[[Event], None]


def tell(event: Event) -> None:
    """An event as a line of the log, for whoever looks on."""
    if isinstance(event, ServerChanged):
        more = f": {event.detail}" if event.detail else ""
        log.debug("server %r is %s%s", event.server, event.state, more)
        return
    delivery = f", {event.delivery}" if event.delivery else ""
    where = f"server {event.server!r}" if event.server is not None else "no server"
    words = "%s of %.200r at %s: %s%s after %.1f ms"
    name, took = event.name.partition("?")[0], event.seconds * 1000  # an address may hold a key
    log.debug(words, event.method, name, where, event.outcome, delivery, took)


def fan_out(sinks: Sequence[Sink]) -> Sink | None:
    """One sink that feeds many, or None when nobody listens; the log listens when it is asked to
    hold everything."""
    if log.isEnabledFor(logging.DEBUG):
        sinks = [*sinks, tell]
    if not sinks:
        return None

    def emit(event: Event) -> None:
        for sink in sinks:
            try:
                sink(event)
            except Exception:  # a call is answered whatever becomes of the news of it
                log.exception("a sink failed")

    return emit
