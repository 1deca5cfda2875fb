"""Constants of the protocol: versions, methods, error codes, log levels, default limits.

A test compares them with the SDK's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
FIRST_WITH_LINKS: Final = "2025-06-18"
"""The first version whose results of tools may have links to resources."""
LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
BATCH_VERSIONS: Final = HANDSHAKE_VERSIONS[:2]  # later ones have no batches
STATELESS_VERSIONS: Final = ("2026-07-28",)
LATEST_STATELESS: Final = STATELESS_VERSIONS[-1]


class Era(StrEnum):
    """How two peers talk: in a session opened by a handshake, or by self-contained requests."""

    HANDSHAKE = "handshake"
    STATELESS = "stateless"


# Before Python 3.12 the look-up of an enum member runs Python code: the call path uses these.
HANDSHAKE: Final = Era.HANDSHAKE
STATELESS: Final = Era.STATELESS


def era_of(version: str) -> Era:
    """The era of a protocol version."""
    return Era.STATELESS if version in STATELESS_VERSIONS else Era.HANDSHAKE


# Members of ``_meta`` that the stateless era reserves.
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

# The stateless era's own.
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

# Junction's own, in the range the protocol leaves to implementations.
SERVER_UNAVAILABLE: Final = -32000
CALL_TIMEOUT: Final = -32001
RATE_LIMITED: Final = -32003
DENIED: Final = -32004
LINK_LOST: Final = -32005
SIGN_IN_NEEDED: Final = -32006
APPROVAL_NEEDED: Final = -32007
CIRCUIT_OPEN: Final = -32008
IDEMPOTENCY_CONFLICT: Final = -32009

URL_ELICITATION_REQUIRED: Final = -32042
"""The code of 2025-11-25 for a call that can go on once the client has opened a link."""
URL_ELICITATION: Final = "notifications/elicitation/complete"

# The code of servers of the handshake era for a URI that they do not know.
RESOURCE_NOT_FOUND: Final = -32002

LOG_MESSAGE: Final = "notifications/message"
LIST_CHANGES: Final = frozenset(
    f"notifications/{lists}/list_changed" for lists in ("tools", "prompts", "resources")
)
"""The notifications that announce other lists."""

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


def covers_level(known: str | None, wanted: str) -> bool:
    """Whether whoever gets log messages from the level ``known`` on gets those of ``wanted``."""
    return known is not None and LOG_LEVELS.index(known) <= LOG_LEVELS.index(wanted)


def choose_version(wanted: str) -> str:
    """Choose the version to answer ``initialize`` with: the client's, or else our newest."""
    return wanted if wanted in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE


DEFAULT_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one line."""
MAX_CLIENT_INFO: Final = 16 * 1024
"""Bytes of ``clientInfo``, and of a client's ``capabilities``."""
DEFAULT_PAGE_SIZE: Final = 10_000
"""Items of one page."""
