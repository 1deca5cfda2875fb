"""Reads ``server.tool`` on a command line, by the servers that a running service has."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from mcp_junction.cli.remote import SERVERS, ServiceClient
from mcp_junction.errors import Problem, UsageError
from mcp_junction.policy.grants import GrantTarget, parse_target


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


def tool_path(target: GrantTarget) -> str:
    """Return the part of a path that names a server and its tool."""
    return f"{quote(target.server_id, safe='')}/{quote(target.tool_name, safe='')}"
