"""Warnings about grants and settings of tools: they name no known tool, or no call can meet them.

Nothing is refused by a warning: a tool may come later. Warnings are for those who may change the
policy, who may see every tool.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterator
from itertools import islice
from typing import Final

from mcp_junction.api.conventions import Context
from mcp_junction.errors import NotFound
from mcp_junction.policy.cel_syntax import find_reads, parse_condition
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import ANY, TOOLS, Grant
from mcp_junction.policy.patterns import NamePattern, compile_pattern, is_exact
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.slices import Slices

_COMPARED: Final = 300
"""To compare a wrong name with more names than these takes too long."""
_LONGEST: Final = 64
"""Characters of a name that is worth comparing."""
_NEAREST: Final = 3


async def find_grant_warnings(
    context: Context, grant: Grant, grants: GrantSet | None = None
) -> list[str]:
    """Say why a grant may let nothing pass: one of those in force, or else of ``grants``."""
    found = []
    if TOOLS in grant.kinds and grant.tool_name != ANY:
        pattern = compile_pattern(grant.tool_name)
        if not await _is_known(context, grant.server_id, pattern):
            unknown = await _describe_unknown(context, grant.server_id, pattern)
            found.append(f"{unknown}; the grant holds for one that comes later")
    if grant.when and not _can_be_met(grant, grants or context.live_policy.of(grant.agent_id)):
        found.append(f"no call of agent {grant.agent_id!r} can meet its condition: {grant.when}")
    return found


async def find_setting_warnings(context: Context, setting: ToolSetting) -> list[str]:
    """Say what a setting names that is not known: its tool, or fallbacks."""
    known = context.registry.tools.known
    found = []
    name, is_set = setting.tool_name, setting != ToolSetting(setting.server_id, setting.tool_name)
    if is_set and name != ANY and known.find(setting.server_id, name) is None:
        unknown = await describe_unknown_tool(context, setting.server_id, name)
        found.append(f"{unknown}; the setting holds for one that comes later")
    for target in setting.fallbacks:
        if known.find(target.server_id, target.tool_name) is None:
            unknown = await describe_unknown_tool(context, target.server_id, target.tool_name)
            found.append(f"{unknown}; as a fallback it is passed over")
    return found


async def _is_known(context: Context, server_id: str, pattern: NamePattern) -> bool:
    """Whether a known tool has a name that fits."""
    if pattern.is_exact and server_id != ANY:
        return context.registry.tools.known.find(server_id, pattern.text) is not None
    slices = Slices()
    for name in _names_of(context, server_id):
        if pattern.matches(name):
            return True
        if slices.is_over:
            await slices.rest()
    return False


def _names_of(context: Context, server_id: str) -> Iterator[str]:
    try:
        tools = context.registry.tools.known.of(None if server_id == ANY else server_id)
    except NotFound:  # it was removed meanwhile
        return iter(())
    return (tool.name for tool in tools)


async def _describe_unknown(context: Context, server_id: str, pattern: NamePattern) -> str:
    if pattern.is_exact:
        return await describe_unknown_tool(context, server_id, pattern.text)
    return f"no known tool of {_name_server(context, server_id)} fits {pattern.text!r}"


def _name_server(context: Context, server_id: str) -> str:
    name = context.server_names.get(server_id, server_id)
    return "any server" if server_id == ANY else repr(name)


async def describe_unknown_tool(context: Context, server_id: str, name: str) -> str:
    """Say that no known tool has a name, and which names are like it, to who may see them all."""
    server = _name_server(context, server_id)
    names = list(islice(_names_of(context, server_id), _COMPARED + 1))
    like = list[str]()
    if len(names) <= _COMPARED and len(name) <= _LONGEST:
        known = [one for one in names if len(one) <= _LONGEST and one.isprintable()]
        like = await asyncio.to_thread(difflib.get_close_matches, name, known, _NEAREST, 0.5)
    near = f" (near: {', '.join(like)})" if like else ""
    return f"no known tool of {server} is named {name!r}{near}"


def _can_be_met(grant: Grant, grants: GrantSet) -> bool:
    """Whether some call may meet the condition of a grant, as far as that is plain."""
    reads_tool = any(path[0] == "tool" for path in find_reads(parse_condition(grant.when)))
    if reads_tool and (grant.server_id == ANY or not is_exact(grant.tool_name)):
        return True
    return any(
        grants.is_possible(grant, kind, grant.server_id, grant.tool_name) for kind in grant.kinds
    )
