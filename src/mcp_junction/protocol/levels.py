"""Which log messages a client wants, by the level it has asked for."""

from __future__ import annotations

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import LOG_LEVELS


def passes(params: Raw, least: int) -> bool:
    """Whether a log message is of the level ``least`` or above; one of no known level is."""
    try:
        level = frames.text(frames.members(params).get("level"))
    except FrameError:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= least
