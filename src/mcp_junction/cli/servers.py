"""``mcp-junction servers list|show|add|remove|connect|disconnect``: the servers of a service."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from mcp_junction.cli.options import parser
from mcp_junction.cli.printing import print_json, print_table
from mcp_junction.cli.remote import SERVERS, Remote, add_remote_options, server_path
from mcp_junction.errors import UsageError

_PATIENCE: Final = 35.0
_LOOK: Final = 0.2
_SHOWN: Final = (
    "id", "name", "status", "absent", "description", "transport_type", "origin", "enabled",
    "reachable", "authenticated", "healthy", "error_message", "tool_count", "response_time_ms",
    "error_rate", "last_health_check", "isolation", "pin", "registered_at", "connected_at",
)  # fmt: skip


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction servers",
        "Show, add, connect and remove the servers of a running `mcp-junction serve`.",
        "examples:\n"
        "  mcp-junction servers list\n"
        "  mcp-junction servers list --all     # also absent ones, whose pins are kept\n"
        "  mcp-junction servers add git -- uvx mcp-server-git\n"
        "  mcp-junction servers add wiki --http https://wiki.example/mcp"
        " --header 'Authorization=Bearer ${WIKI_TOKEN}'\n",
    )
    actions = options.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show all servers")
    listing.add_argument(
        "--all",
        action="store_true",
        help="also absent ones: in an earlier config file, not in this one",
    )
    listing.add_argument("--status", metavar="S", help="only those in this state, e.g. error")
    show = actions.add_parser("show", help="show everything about one")
    add = actions.add_parser(
        "add",
        help="register a server and connect it",
        usage="mcp-junction servers add NAME [options] -- COMMAND [ARGS]"
        "\n       mcp-junction servers add NAME [options] --http ADDRESS | --sse ADDRESS",
        description="Register a server: by its command after --, or by its address."
        "\n${VARIABLES} are replaced by the service each time it connects, and never stored.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(add)
    remove = actions.add_parser("remove", help="remove a server with its tools and pins")
    connect = actions.add_parser("connect", help="connect a server")
    disconnect = actions.add_parser("disconnect", help="disconnect a server; its calls may end")
    disconnect.add_argument("--force", action="store_true", help="cancel its calls instead")
    for action in (show, remove, connect, disconnect):
        action.add_argument("name", metavar="NAME", help="the server's name or id")
    for action in (listing, show, add, remove, connect, disconnect):
        add_remote_options(action)
    # argparse gives up on a command that stands behind options; it begins at the first "--".
    end = argv.index("--") if "--" in argv else len(argv)
    given = options.parse_args(argv[:end])
    given.command = argv[end + 1 :]
    return _ACTIONS[given.action](given, Remote.of(given))


def _add_options(add: argparse.ArgumentParser) -> None:
    add.add_argument("name", metavar="NAME", help="a-z, 0-9, '_' and '-'; a letter first")
    add.add_argument("--http", metavar="ADDRESS", help="a server by streamable HTTP")
    add.add_argument("--sse", metavar="ADDRESS", help="a server by the older HTTP+SSE")
    add.add_argument("--env", metavar="K=V", action="append", default=[], help="for a program")
    add.add_argument("--header", metavar="K=V", action="append", default=[], help="for an address")
    add.add_argument("--cwd", metavar="DIR", help="where a program runs")
    add.add_argument("--description", default="", help="a few words about it")
    add.add_argument("--health-check-url", metavar="ADDRESS", help="asked whether it is well")
    add.add_argument("--pin", choices=("off", "warn", "strict"), help="when definitions change")
    add.add_argument("--isolation", choices=("shared", "per-session"), help="one for all, or each")
    add.add_argument("--allow-private", action="store_true", help="its address may be private")
    add.add_argument("--allow-http", action="store_true", help="http without TLS off this machine")
    add.add_argument("--no-connect", action="store_true", help="only register it")
    add.add_argument("--no-wait", action="store_true", help="do not wait for how connecting ends")


def _list(given: argparse.Namespace, remote: Remote) -> int:
    found = list(remote.pages(SERVERS, status=given.status, include_absent=given.all or None))
    if given.json:
        print_json(found)
        return 0
    rows = [
        (one["name"], _status(one), one["tool_count"], one["transport_type"], one["origin"],
         one["error_message"] or one["description"])
        for one in found
    ]  # fmt: skip
    headings = ("server", "status", "tools", "by", "from", "")
    print_table(headings, rows, "There are no servers yet; see: mcp-junction servers add --help")
    return 0


def _status(one: dict[str, Any]) -> str:
    return "ABSENT" if one.get("absent") else str(one["status"])


def _show(given: argparse.Namespace, remote: Remote) -> int:
    found = remote.get(server_path(given.name), include_tools=True, include_absent=True)
    if given.json:
        print_json(found)
        return 0
    rows = [(name, found[name]) for name in _SHOWN if found[name] not in (None, "")]
    rows += [(f"connection.{name}", value) for name, value in found["connection_config"].items()]
    rows += [("tools", "\n".join(tool["original_name"] for tool in found["tools"]))]
    print_table(("", ""), [(name, _lines(value)) for name, value in rows], "")
    return 0


def _add(given: argparse.Namespace, remote: Remote) -> int:
    made = remote.post(SERVERS, _registration(given))
    if not (given.no_connect or given.no_wait):
        made = _settled(remote, made)
    if given.json:
        print_json(made)
    else:
        _tell(made)
    return 1 if made["status"] == "ERROR" else 0


def _registration(given: argparse.Namespace) -> dict[str, Any]:
    ways = [bool(given.command), bool(given.http), bool(given.sse)]
    if sum(ways) != 1:
        raise UsageError("give one of: -- COMMAND [ARGS], --http ADDRESS, --sse ADDRESS")
    config: dict[str, Any] = {}
    if given.command:
        config = {"command": given.command[0], "args": given.command[1:]}
        config |= {"env": _pairs(given.env, "--env")} if given.env else {}
        config |= {"cwd": given.cwd} if given.cwd else {}
    else:
        config = {"url": given.http or given.sse}
        config |= {"headers": _pairs(given.header, "--header")} if given.header else {}
    body = {
        "name": given.name,
        "description": given.description,
        "transport_type": "STDIO" if given.command else "HTTP" if given.http else "SSE",
        "connection_config": config,
        "auto_connect": not given.no_connect,
        "health_check_url": given.health_check_url,
        "allow_private": given.allow_private,
        "allow_http": given.allow_http,
    }
    chosen = {name: getattr(given, name) for name in ("pin", "isolation")}
    return body | {name: value for name, value in chosen.items() if value}


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    if not all(name and equals for name, equals, _ in pairs):
        raise UsageError(f"{option} must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _settled(remote: Remote, made: dict[str, Any]) -> dict[str, Any]:
    """The server once its first connection is made or has failed."""
    end = time.monotonic() + _PATIENCE
    while made["status"] == "CONNECTING" and time.monotonic() < end:
        time.sleep(_LOOK)
        made = remote.get(server_path(made["id"]))
    return made


def _tell(made: dict[str, Any]) -> None:
    words = f"{made['name']} is {made['status']}"
    if made["status"] == "CONNECTED":
        words += f", with {made['tool_count']} tools"
    if made["error_message"]:
        words += f": {made['error_message']}"
    print(words, file=sys.stderr if made["status"] == "ERROR" else sys.stdout)


def _remove(given: argparse.Namespace, remote: Remote) -> int:
    remote.delete(server_path(given.name))
    if given.json:
        print_json({"removed": given.name})
    else:
        print(f"{given.name} is removed, with its tools")
    return 0


def _connect(given: argparse.Namespace, remote: Remote) -> int:
    done = remote.post(f"{server_path(given.name)}/connect")
    if given.json:
        print_json(done)
    else:
        print(f"{given.name}: {done['status']}: {done['message']}")
    return 1 if done["status"] == "ERROR" else 0


def _disconnect(given: argparse.Namespace, remote: Remote) -> int:
    done = remote.post(f"{server_path(given.name)}/disconnect", {"force": given.force})
    if given.json:
        print_json(done)
    else:
        print(f"{given.name}: {done['status']}; {done['pending_requests']} calls were under way")
    return 0


def _lines(value: Any) -> Any:
    if isinstance(value, dict):
        return "\n".join(f"{name}={one}" for name, one in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else value


_ACTIONS: Final = {
    "list": _list,
    "show": _show,
    "add": _add,
    "remove": _remove,
    "connect": _connect,
    "disconnect": _disconnect,
}
