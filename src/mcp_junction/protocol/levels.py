"""Which log messages a client wants, by the level it has asked for."""

from __future__ import annotations

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import LOG_LEVELS


def is_enough(known: str | None, wanted: str, *, exactly: bool) -> bool:
    """Whether a server that was told ``known`` says as much as is wanted, or just that."""
    if known is None or known == wanted:
        return known == wanted
    return not exactly and LOG_LEVELS.index(known) <= LOG_LEVELS.index(wanted)


def passes(params: Raw, least: int) -> bool:
    """Whether a log message is of the level ``least`` or above; one of no known level is."""
    try:
        level = frames.text(frames.members(params).get("level"))
    except FrameError:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= least
