"""Constants of the protocol: versions, methods, error codes. A test holds them against the SDK's.

Not a model of the messages: payloads pass through unread.
"""

from __future__ import annotations

from typing import Final

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

# Junction's own, in the range the protocol leaves to implementations.
SERVER_UNAVAILABLE: Final = -32000
CALL_TIMEOUT: Final = -32001
RATE_LIMITED: Final = -32003
LINK_LOST: Final = -32005

# What servers of the handshake era say of an address they do not know.
RESOURCE_NOT_FOUND: Final = -32002

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)


def negotiate(wanted: str) -> str:
    """The version to answer ``initialize`` with: the client's if we speak it, else our newest."""
    return wanted if wanted in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE
