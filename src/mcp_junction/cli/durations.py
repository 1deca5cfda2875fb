"""Reads lengths and points of time as people write them on a command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any, Final

from mcp_junction.errors import UsageError

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LENGTH: Final = re.compile(r"(\d{1,9})([smhdw]?)")
_LIMIT: Final = re.compile(r"(\d{1,10})/(\d{1,9}[smhdw]?)")


def parse_duration(text: str, option: str) -> int:
    """Read ``90``, ``90s``, ``15m``, ``12h``, ``7d`` or ``2w``; return seconds."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} must be a time like 90s, 15m, 12h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def parse_moment(text: str, option: str) -> str:
    """Read a time from now, like ``7d``, or an ISO date; return it as RFC 3339 in UTC."""
    try:
        if _LENGTH.fullmatch(text):
            at = datetime.fromtimestamp(time.time() + parse_duration(text, option), UTC)
        else:
            at = datetime.fromisoformat(text)
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        raise UsageError(f"{option} must be like 7d, or a date like 2027-01-31") from None


def parse_past(text: str, option: str) -> float:
    """Read a time that has passed: ``2h`` is two hours ago; or an ISO date. Returns seconds."""
    if _LENGTH.fullmatch(text):
        return time.time() - parse_duration(text, option)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} must be like 2h, or a date like 2027-01-31") from None
    return at.timestamp()  # without a zone, that of this machine


def parse_limit(text: str, option: str) -> dict[str, Any]:
    """Read ``100/3600`` or ``100/1h``: so many calls in such a time."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} must be CALLS/TIME, like 100/3600 or 100/1h")
    return {"calls": int(found[1]), "per": parse_duration(found[2], option)}


def format_seconds(seconds: float) -> str:
    """Write a length of time in its largest whole unit: 900 is ``15m``."""
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def format_moment(text: str | None) -> str:
    """Write a time of a service shorter, to the minute in UTC; nothing for none."""
    return "" if text is None else f"{text[:10]} {text[11:16]}"
