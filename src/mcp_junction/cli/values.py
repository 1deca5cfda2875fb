"""Values on a command line: times, limits, tools and JSON arguments; read, and written likewise."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

from mcp_junction.cli.remote import SERVERS, ServiceClient
from mcp_junction.errors import FrameError, Problem, UsageError
from mcp_junction.policy.grants import GrantTarget, parse_target
from mcp_junction.protocol import requests

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


# -- tools


def read_targets(remote: ServiceClient, texts: list[str]) -> list[GrantTarget]:
    """Read each text as a server and a pattern. Raises UsageError for one that names no server."""
    servers = {}
    for one in remote.pages(SERVERS):
        servers[one["name"]] = servers[one["id"]] = one["id"]
    targets = []
    for text in texts:
        target = parse_target(text, servers)
        if isinstance(target, Problem):
            raise UsageError(f"{text!r} {target.message}; see: mcp-junction servers list")
        targets.append(target)
    return targets


def name_target(row: dict[str, Any]) -> str:
    """Name what a row with a server and a tool is about, as it is written on a command line."""
    server, tool = row["server_id"], row["tool_name"]
    return "*" if server == tool == "*" else f"{server}.{tool}"


# -- arguments of a call


def read_arguments(text: str) -> bytes:
    """Read the arguments, as they are written, and check that they are a JSON object."""
    data = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the arguments are not UTF-8: byte {error.start}") from None
    try:
        value = requests.check_json(data)
    except FrameError as error:
        raise UsageError(_describe_fault(text, error)) from None
    if not value.startswith(b"{"):
        raise UsageError('the arguments must be a JSON object, for example {"path": "notes.txt"}')
    return value


def _describe_fault(text: str, refused: FrameError) -> str:
    """Describe what is wrong with a text, by line and column."""
    try:
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the arguments: an escape such as \\ud800 is half a character; write both halves"
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        return f"the arguments are not JSON: {where}: {error.msg}"
    except ValueError as error:
        return f"the arguments are not JSON: {error}"
    except RecursionError:
        pass
    return f"the arguments: {refused}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"there is no {constant}")
