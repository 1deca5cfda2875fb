"""ServerState: the state machine of a server; and Condition, by which it is DEGRADED."""

from __future__ import annotations

from enum import StrEnum


class ServerState(StrEnum):
    """Where a server is in its life."""

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
    """Whether a server may change from one state to the other."""
    return following is ServerState.DISCONNECTED or following in _NEXT[current]


def parse_state(text: str) -> ServerState:
    """Parse a state in any case, as the platform or as stdio mode calls it. Raises ValueError."""
    for state, simple in SIMPLE_NAMES.items():
        if text.lower() in (state.lower(), simple):
            return state
    raise ValueError(f"{text!r} is not a state; use one of {', '.join(ServerState)}")


class Condition:
    """The health of a server whose link is up."""

    def __init__(self) -> None:
        self.is_well = True
        """Whether its checks and its calls succeed."""
        self.shortfall = ""
        """Which of its lists could not be read completely, and why; empty when all were."""
        self.left_out = ""
        """Why something that it lists is not served; empty when all is that may be."""
        self.reachable_junctions: frozenset[str] = frozenset()
        """The ids of the Junctions behind it, as its lists name them."""

    @property
    def state(self) -> ServerState:
        """The state of the server while its link is up."""
        is_good = self.is_well and not self.shortfall and not self.left_out
        return ServerState.CONNECTED if is_good else ServerState.DEGRADED

    @property
    def lacking(self) -> str:
        """What is not served of its lists, and why; empty when nothing is lacking."""
        return "; ".join(filter(None, (self.shortfall, self.left_out)))
