"""``mcp-junction tools show|set``: shows what holds for a tool, and sets it."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from mcp_junction.cli.options import Parser
from mcp_junction.cli.printing import print_json, print_table
from mcp_junction.cli.remote import ServiceClient
from mcp_junction.cli.targets import name_target, read_targets, tool_path
from mcp_junction.errors import UsageError

MCP_TOOLS: Final = "/api/v1/mcp/tools"
_SHOWN: Final = (
    "version", "enabled", "reason", "risk", "risk_reason", "breaker", "description"
)  # fmt: skip
_FALLBACKS: Final = "fallbacks"
_FLAGS: Final = ("enabled", "read_only", "idempotent")
_NUMBERS: Final = ("timeout_ms",)
_TEXTS: Final = ("risk", "versions")
_SETTABLE: Final = (*_FLAGS, *_TEXTS, *_NUMBERS, _FALLBACKS)


def add_tool_actions(actions: Any) -> list[Parser]:
    """Add the actions that show and set what holds for one tool."""
    show = actions.add_parser("show", help="show what holds for a tool: risk, state, settings")
    change = actions.add_parser(
        "set",
        help="set risk, timeout, fallbacks and the like of a tool",
        description="Set what holds for a tool, from now on. KEY= unsets. The keys:\n\n"
        "  enabled     false hides it\n"
        "  risk        high or low; only this lowers the risk of a tool\n"
        "  read_only   true: it changes nothing, and may be tried again\n"
        "  idempotent  true: to run it twice does no harm, and it may be tried again\n"
        "  timeout_ms  how long one attempt may take\n"
        "  fallbacks   server.tool,… to call in its place when it fails, in this order\n"
        "  versions    the compatible versions, like '>=1.2,<2'\n",
        epilog="examples:\n  mcp-junction tools set git.git_log idempotent=true timeout_ms=5000\n"
        "  mcp-junction tools set search.query fallbacks=mirror.query,archive.find\n"
        "  mcp-junction tools set files.update_index risk=low\n"
        "  mcp-junction tools set files.update_index risk=\n",
    )
    for action in (show, change):
        action.add_argument("name", metavar="NAME", help="server.tool")
    change.add_argument("pairs", metavar="KEY=VALUE", nargs="+", help="what to set")
    return [show, change]


def show_tool(args: argparse.Namespace, remote: ServiceClient) -> int:
    (target,) = read_targets(remote, [args.name])
    found = remote.get(f"{MCP_TOOLS}/{tool_path(target)}")
    rows = [("tool", name_target(found))]
    rows += [(name, _write(found[name])) for name in _SHOWN if found.get(name) not in (None, "")]
    rows += [("flags", "\n".join(found["flags"]))] if found.get("flags") else []
    chosen = found.get("settings") or {}
    rows += [(f"set: {name}", _write(value)) for name, value in chosen.items() if _is_set(value)]
    return print_table(args, found, ("", ""), rows)


def set_tool(args: argparse.Namespace, remote: ServiceClient) -> int:
    (target,) = read_targets(remote, [args.name])
    changes = dict(_read_pair(pair, remote) for pair in args.pairs)
    found = remote.patch(f"{MCP_TOOLS}/{tool_path(target)}", changes)
    if args.json:
        print_json(found)
        return 0
    rows = [(name, _write(value)) for name, value in found.items() if _is_set(value)]
    return print_table(args, found, (args.name, ""), rows, f"Nothing is set for {args.name}.")


def _read_pair(pair: str, remote: ServiceClient) -> tuple[str, Any]:
    """Read KEY=VALUE. Raises UsageError that says what it must be."""
    name, equals, text = pair.partition("=")
    if name not in _SETTABLE or not equals:
        raise UsageError(f"{pair!r} must be KEY=VALUE, with a key of {', '.join(_SETTABLE)}")
    if not text:
        return name, None
    if name == _FALLBACKS:
        targets = read_targets(remote, [one.strip() for one in text.split(",")])
        return name, [{"server_id": one.server_id, "tool_name": one.tool_name} for one in targets]
    if name in _TEXTS:
        return name, text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if type(value) is not (bool if name in _FLAGS else int):
        wanted = "true or false" if name in _FLAGS else "a whole number"
        raise UsageError(f"{pair!r}: {name} must be {wanted}")
    return name, value


def _is_set(value: Any) -> bool:
    return value is not None and value != []


def _write(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(name_target(one) if isinstance(one, dict) else str(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value)
