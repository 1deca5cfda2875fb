"""The one state machine of a server. All its rules are here.

    DISCONNECTED ─▶ CONNECTING ─▶ CONNECTED ◀─▶ DEGRADED
                        │  ▲           │            │
                        ▼  │           ▼            ▼
                       ERROR ◀──────────────────────┘

Every state may go to DISCONNECTED: that is the operator's doing. In stdio mode the same states
carry the simpler names of ``SIMPLE``.
"""

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

SIMPLE = {
    ServerState.CONNECTING: "initializing",
    ServerState.CONNECTED: "running",
    ServerState.DEGRADED: "running",
    ServerState.ERROR: "failed",
    ServerState.DISCONNECTED: "stopped",
}


def may_follow(current: ServerState, following: ServerState) -> bool:
    """Whether a server may go from one state to the other."""
    return following is ServerState.DISCONNECTED or following in _NEXT[current]


def parse_state(text: str) -> ServerState:
    """A state as people write it: any case, either set of names. Raises ValueError."""
    for state, simple in SIMPLE.items():
        if text.lower() in (state.lower(), simple):
            return state
    raise ValueError(f"{text!r} is not a state; use one of {', '.join(ServerState)}")
