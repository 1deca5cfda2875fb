"""Which log messages a client wants, by the level it has asked for."""

from __future__ import annotations

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import LOG_LEVELS


def covers_level(known: str | None, wanted: str, *, exactly: bool) -> bool:
    """Whether a server that was told ``known`` says as much as is wanted, or just that."""
    if known is None or known == wanted:
        return known == wanted
    return not exactly and LOG_LEVELS.index(known) <= LOG_LEVELS.index(wanted)


def has_level(params: Raw, least: int) -> bool:
    """Whether a log message is of the level ``least`` or above; one of no known level is."""
    return level_rank(params) >= least


def level_rank(params: Raw) -> int:
    """The number of a log message's level: above all when it is not known, below when there is no
    message."""
    try:
        level = frames.text(frames.members(params).get("level"))
    except FrameError:
        return -1
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)
