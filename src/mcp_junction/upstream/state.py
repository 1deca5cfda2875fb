"""The state machine of a server, with all its rules; and Condition, which makes it DEGRADED."""

from __future__ import annotations

from enum import StrEnum


class ServerState(StrEnum):
    CONNECTING = "CONNECTING"
    CONNECTED = "CONNECTED"
    DEGRADED = "DEGRADED"
    ERROR = "ERROR"
    DISCONNECTED = "DISCONNECTED"


SERVING = (ServerState.CONNECTED, ServerState.DEGRADED)
"""The states in which a server can be called."""

_NEXT = {
    ServerState.DISCONNECTED: {ServerState.CONNECTING},
    ServerState.CONNECTING: {ServerState.CONNECTED, ServerState.ERROR},
    ServerState.CONNECTED: {ServerState.DEGRADED, ServerState.ERROR},
    ServerState.DEGRADED: {ServerState.CONNECTED, ServerState.ERROR},
    ServerState.ERROR: {ServerState.CONNECTING},
}

SIMPLE_NAMES = {
    ServerState.CONNECTING: "initializing",
    ServerState.CONNECTED: "running",
    ServerState.DEGRADED: "running",
    ServerState.ERROR: "failed",
    ServerState.DISCONNECTED: "stopped",
}


def can_follow(current: ServerState, following: ServerState) -> bool:
    """Whether a server may go from one state to the other."""
    return following is ServerState.DISCONNECTED or following in _NEXT[current]


def parse_state(text: str) -> ServerState:
    """A state as people write it: any case, either set of names. Raises ValueError."""
    for state, simple in SIMPLE_NAMES.items():
        if text.lower() in (state.lower(), simple):
            return state
    raise ValueError(f"{text!r} is not a state; use one of {', '.join(ServerState)}")


class Condition:
    """What is known of a server while its link is up."""

    __slots__ = ("is_well", "reachable_junctions", "shortfall")

    def __init__(self) -> None:
        self.is_well = True
        """Whether it is healthy by its checks and its calls."""
        self.shortfall = ""
        """Which of its lists were not read to the end, and why; empty when all were."""
        self.reachable_junctions: frozenset[str] = frozenset()
        """The ids of the Junctions behind it, as its lists name them."""

    @property
    def state(self) -> ServerState:
        """The state that follows from it while the link is up."""
        has_all = self.is_well and not self.shortfall
        return ServerState.CONNECTED if has_all else ServerState.DEGRADED
