"""``mcp-junction servers``: lists, adds, removes and connects servers of a running service."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from mcp_junction.cli.options import action, add_actions, make_parser, option, read_port
from mcp_junction.cli.printing import print_message, print_table, print_value
from mcp_junction.cli.remote import (
    SERVERS,
    ServiceClient,
    act_remotely,
    add_remote_options,
    server_path,
)
from mcp_junction.cli.sign_in import log_in, log_out, show_auth
from mcp_junction.errors import UsageError

_PATIENCE: Final = 35.0
_LOOK: Final = 0.2
_SHOWN: Final = (
    "id", "name", "status", "absent", "description", "transport_type", "origin", "enabled",
    "reachable", "authenticated", "auth", "healthy", "error_message", "tool_count",
    "response_time_ms", "error_rate", "last_health_check", "isolation", "pin", "registered_at",
    "connected_at",
)  # fmt: skip


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction servers",
        "Show, add, connect and remove the servers of a running `mcp-junction serve`.",
        "examples:\n"
        "  mcp-junction servers list\n"
        "  mcp-junction servers list --all     # also absent ones, whose pins are kept\n"
        "  mcp-junction servers add git -- uvx mcp-server-git\n"
        "  mcp-junction servers add wiki --http https://wiki.example/mcp"
        " --header 'Authorization=Bearer ${WIKI_TOKEN}'\n",
    )
    add_actions(parser, _ACTIONS, add_remote_options)
    # argparse does not accept a command after options: it begins at the first "--".
    end = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:end])
    args.command = argv[end + 1 :]
    return act_remotely(args)


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = list(remote.pages(SERVERS, status=args.status, include_absent=args.all or None))
    rows = [
        (one["name"], _status(one), one["tool_count"],
         one["transport_type"], one["origin"], one["error_message"] or one["description"])
        for one in found
    ]  # fmt: skip
    headings = ("server", "status", "tools", "by", "from", "")
    empty = "There are no servers yet; see: mcp-junction servers add --help"
    return print_table(args, found, headings, rows, empty)


def _status(one: dict[str, Any]) -> str:
    """The status to show: whether it is broken, or only wants a sign-in."""
    needs_sign_in = (one.get("auth") or {}).get("state") == "needs_sign_in"
    if one.get("absent"):
        return "ABSENT"
    return "SIGN IN" if needs_sign_in else str(one["status"])


def _show(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = remote.get(server_path(args.name), include_tools=True, include_absent=True)
    rows = [(name, found[name]) for name in _SHOWN if found[name] not in (None, "")]
    rows += [(f"connection.{name}", value) for name, value in found["connection_config"].items()]
    rows += [("tools", "\n".join(tool["original_name"] for tool in found["tools"]))]
    return print_table(args, found, ("", ""), [(name, _to_lines(value)) for name, value in rows])


def _add(args: argparse.Namespace, remote: ServiceClient) -> int:
    made = remote.post(SERVERS, _registration(args))
    if not (args.no_connect or args.no_wait):
        made = _wait_until_settled(remote, made)
    print_value(args, made, _print_status)
    return 1 if made["status"] == "ERROR" else 0


def _registration(args: argparse.Namespace) -> dict[str, Any]:
    ways = [bool(args.command), bool(args.http), bool(args.sse)]
    if sum(ways) != 1:
        raise UsageError("give one of: -- COMMAND [ARGS], --http ADDRESS, --sse ADDRESS")
    config: dict[str, Any] = {}
    if args.command:
        config = {"command": args.command[0], "args": args.command[1:]}
        config |= {"env": _parse_pairs(args.env, "--env")} if args.env else {}
        config |= {"cwd": args.cwd} if args.cwd else {}
    else:
        config = {"url": args.http or args.sse}
        config |= {"headers": _parse_pairs(args.header, "--header")} if args.header else {}
    body = {
        "name": args.name,
        "description": args.description,
        "transport_type": "STDIO" if args.command else "HTTP" if args.http else "SSE",
        "connection_config": config,
        "auto_connect": not args.no_connect,
        "health_check_url": args.health_check_url,
        "allow_private": args.allow_private,
        "allow_http": args.allow_http,
    }
    chosen = {name: getattr(args, name) for name in ("pin", "isolation")}
    return body | {name: value for name, value in chosen.items() if value}


def _parse_pairs(texts: list[str], option: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in texts]
    if not all(name and equals for name, equals, _ in pairs):
        raise UsageError(f"{option} must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _wait_until_settled(remote: ServiceClient, made: dict[str, Any]) -> dict[str, Any]:
    """Wait until the first connection of a new server is made or has failed."""
    end = time.monotonic() + _PATIENCE
    while made["status"] == "CONNECTING" and time.monotonic() < end:
        time.sleep(_LOOK)
        made = remote.get(server_path(made["id"]))
    return made


def _print_status(made: dict[str, Any]) -> None:
    words = f"{made['name']} is {made['status']}"
    if made["status"] == "CONNECTED":
        words += f", with {made['tool_count']} tools"
    if made["error_message"]:
        words += f": {made['error_message']}"
    print(words, file=sys.stderr if made["status"] == "ERROR" else sys.stdout)


def _remove(args: argparse.Namespace, remote: ServiceClient) -> int:
    remote.delete(server_path(args.name))
    return print_message(args, {"removed": args.name}, f"{args.name} is removed, with its tools")


def _connect(args: argparse.Namespace, remote: ServiceClient) -> int:
    done = remote.post(f"{server_path(args.name)}/connect")
    print_message(args, done, f"{args.name}: {done['status']}: {done['message']}")
    return 1 if done["status"] == "ERROR" else 0


def _disconnect(args: argparse.Namespace, remote: ServiceClient) -> int:
    done = remote.post(f"{server_path(args.name)}/disconnect", {"force": args.force})
    calls = f"{done['pending_requests']} calls were under way"
    return print_message(args, done, f"{args.name}: {done['status']}; {calls}")


def _to_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return "\n".join(f"{name}={one}" for name, one in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else value


_NAME: Final = option("name", metavar="NAME", help="the server's name or id")
_AGENT: Final = option(
    "--agent", metavar="ID", help="for one agent, where each has its own sign-in"
)
_ACTIONS: Final = {
    "list": action(
        _list,
        "show all servers",
        option(
            "--all",
            action="store_true",
            help="also absent ones: named by an earlier config file, not by the current one",
        ),
        option("--status", metavar="S", help="only servers in this state, e.g. error"),
    ),
    "show": action(_show, "show everything about one server", _NAME),
    "add": action(
        _add,
        "register a server and connect it",
        option("name", metavar="NAME", help="a-z, 0-9, '_' and '-'; a letter first"),
        option("--http", metavar="ADDRESS", help="the address of a streamable HTTP server"),
        option(
            "--sse",
            metavar="ADDRESS",
            help="the address of a server with the older HTTP+SSE transport",
        ),
        option(
            "--env",
            metavar="K=V",
            action="append",
            default=[],
            help="an environment variable for the command",
        ),
        option(
            "--header", metavar="K=V", action="append", default=[], help="a header for the address"
        ),
        option("--cwd", metavar="DIR", help="the working directory of the command"),
        option("--description", default="", help="a short description"),
        option(
            "--health-check-url", metavar="ADDRESS", help="an address to check the server's health"
        ),
        option(
            "--pin",
            choices=("off", "warn", "strict"),
            help="what to do when a tool's definition changes",
        ),
        option(
            "--isolation",
            choices=("shared", "per-session"),
            help="one connection for all clients, or one for each",
        ),
        option("--allow-private", action="store_true", help="allow a private address"),
        option(
            "--allow-http", action="store_true", help="allow http without TLS to another machine"
        ),
        option("--no-connect", action="store_true", help="register it without connecting"),
        option("--no-wait", action="store_true", help="do not wait until it is connected"),
        usage="mcp-junction servers add NAME [options] -- COMMAND [ARGS]"
        "\n       mcp-junction servers add NAME [options] --http ADDRESS | --sse ADDRESS",
        description="Register a server: by its command after --, or by its address."
        "\n${VARIABLES} are replaced by the service each time it connects, and never stored.",
    ),
    "remove": action(_remove, "remove a server with its tools and pins", _NAME),
    "connect": action(_connect, "connect a server", _NAME),
    "disconnect": action(
        _disconnect,
        "disconnect a server, after its calls have ended",
        option("--force", action="store_true", help="cancel its calls instead of waiting for them"),
        _NAME,
    ),
    "login": action(
        log_in,
        "sign in to a server that asks for it",
        option(
            "--no-browser",
            action="store_true",
            help="print the link, and ask for the address at which the browser ended",
        ),
        option(
            "--port",
            type=read_port,
            default=0,
            metavar="N",
            help="listen for the answer on this port (default: a free one); a client that you"
            " registered needs http://127.0.0.1:N/callback among its redirects",
        ),
        option(
            "--config",
            metavar="FILE",
            help="sign in for the stdio mode, to a server of this mcpServers file, without a"
            " service",
        ),
        _AGENT,
        _NAME,
    ),
    "logout": action(log_out, "sign out of a server, and revoke its tokens", _AGENT, _NAME),
    "auth": action(show_auth, "show who is signed in to a server", _NAME),
}
