"""Compares the levels of log messages."""

from __future__ import annotations

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import LOG_LEVELS


def covers_level(known: str | None, wanted: str, *, exactly: bool) -> bool:
    """Whether the level ``known``, if any, includes ``wanted``; with ``exactly``, equals it."""
    if known is None or known == wanted:
        return known == wanted
    return not exactly and LOG_LEVELS.index(known) <= LOG_LEVELS.index(wanted)


def has_level(params: Raw, least: int) -> bool:
    """Whether a log message has at least the level ``least``; an unknown level counts as above."""
    return level_rank(params) >= least


def level_rank(params: Raw) -> int:
    """The rank of a log message's level: the highest for an unknown one, -1 without params."""
    try:
        level = frames.text(frames.members(params).get("level"))
    except FrameError:
        return -1
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)
