"""Events: what sinks are given. They name tools canonically and hold no payloads, so no secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger("mcp_junction.telemetry")


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """One routed request has ended, whichever way."""

    principal: str
    method: str
    server: str | None
    name: str
    outcome: str
    delivery: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ServerChanged:
    """A server went from one state to another."""

    server: str
    state: str
    detail: str | None = None


Event = CallCompleted | ServerChanged
Sink = Callable[[Event], None]


def fan_out(sinks: Sequence[Sink]) -> Sink | None:
    """One sink that feeds many, or None when nobody listens."""
    if not sinks:
        return None

    def emit(event: Event) -> None:
        for sink in sinks:
            try:
                sink(event)
            except Exception:  # a call is answered whatever becomes of the news of it
                log.exception("a sink failed")

    return emit
