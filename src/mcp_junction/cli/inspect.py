"""``mcp-junction inspect``: starts the servers of a config file and shows how that went."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp_junction.cli.environment import variables
from mcp_junction.cli.options import (
    add_config_options,
    make_parser,
    option,
    read_config,
    set_up_logging,
)
from mcp_junction.cli.printing import printable, wait_with_progress
from mcp_junction.cli.runner import run_async
from mcp_junction.config.load import Config
from mcp_junction.errors import Phase, ServerError
from mcp_junction.listener.answers import server_instructions
from mcp_junction.redaction.texts import redact_error, redact_text
from mcp_junction.upstream.connecting import init_error
from mcp_junction.upstream.state import SERVING, SIMPLE_NAMES, ServerState
from mcp_junction.upstream.upstream import Upstream

_SHOWN_WORDS = 300
_COLOURS = {
    ServerState.CONNECTED: "green",
    ServerState.CONNECTING: "yellow",
    ServerState.DEGRADED: "yellow",
}


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction inspect",
        "Start every server of a config file, list its tools, and stop it again."
        "\nExit code 1 if a server failed, or not all of its lists could be read.",
        "examples:\n  mcp-junction inspect --config mcp.json\n"
        "  mcp-junction inspect --config mcp.json --json\n",
        add_config_options,
        option("--json", action="store_true", help="print one JSON document instead"),
    )
    args = parser.parse_args(argv)
    set_up_logging(args)
    return run_async(
        _inspect(read_config(args, lenient=True), as_json=args.json, quiet=not args.debug)
    )


async def _inspect(config: Config, *, as_json: bool, quiet: bool) -> int:
    from mcp_junction.app import Junction

    if quiet:
        import logging

        logging.getLogger("mcp_junction.upstream").setLevel(logging.CRITICAL)  # the table shows it
    async with Junction(config.once(), environ=variables()) as junction:
        junction.greet()
        await wait_with_progress(junction, junction.wait_until_settled())
        catalog = junction.snapshot.catalog
        view = catalog.show(junction.spelling())
        report = [
            _describe_server(server, sorted(view.names_of(server.key)))
            for server in junction.servers.values()
        ]
    if not report:
        print(f"mcp-junction: {config.source} has no enabled servers", file=sys.stderr)
    await asyncio.to_thread(_print_json if as_json else _print_table, config, report)
    return 0 if all(row["state"] == ServerState.CONNECTED for row in report) else 1


def _describe_server(server: Upstream, tools: list[str]) -> dict[str, Any]:
    error = server.error or _describe_lateness(server)
    greeting = server.greeting

    def plain(text: str | None) -> str | None:
        return text and redact_text(text, server.definition)

    return {
        "server": server.key,
        "state": server.state.value,
        "status": SIMPLE_NAMES[server.state],
        "name": plain(greeting.name) if greeting else None,
        "version": plain(greeting.version) if greeting else None,
        "protocol": greeting.protocol_version if greeting else None,
        "instructions": plain(server_instructions(server)) or None,
        "tools": tools,
        "start_seconds": round(server.start_seconds, 3) if server.start_seconds else None,
        "phase": error.phase.value if error else None,
        "diagnostic": error.message if error else server.condition.lacking or None,
        "exit_code": error.exit_code if error else None,
        "stderr_tail": error.stderr_tail.splitlines()[-20:] if error else [],
    }


def _describe_lateness(server: Upstream) -> ServerError | None:
    """Describe why a server has not answered yet, if that is known."""
    if server.state is not ServerState.CONNECTING:
        return None
    words = "it has not answered yet"
    if server.current is None:
        return ServerError(server.key, Phase.STARTUP, words)
    return redact_error(init_error(server.current, words), server.definition)


def _print_json(config: Config, report: list[dict[str, Any]]) -> None:
    import json

    print(json.dumps({"config": config.source, "servers": report}, indent=2))


def _print_table(config: Config, report: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=sys.stdout, emoji=False)
    table = Table(title=f"Servers of {escape(config.source)}", title_justify="left")
    for heading in ("server", "state", "tools", "start", "diagnostics"):
        table.add_column(heading, justify="right" if heading in ("tools", "start") else "left")
    for row in report:
        colour = _COLOURS.get(row["state"], "red")
        table.add_row(
            escape(printable(row["server"])),
            f"[{colour}]{row['state']}[/]",
            str(len(row["tools"])) if row["state"] in SERVING else "–",
            f"{row['start_seconds']:.2f} s" if row["start_seconds"] else "–",
            escape("\n".join(map(printable, _diagnostics(row)))),
        )
    console.print(table)
    names = [name for row in report for name in row["tools"]]
    if names:
        console.print(f"[bold]{len(names)} tools:[/] " + escape(printable(", ".join(names))))
    for row in report:
        if row["instructions"]:
            words = printable(" ".join(row["instructions"].split()))
            short = words if len(words) <= _SHOWN_WORDS else f"{words[:_SHOWN_WORDS]}…"
            console.print(
                f"[bold]instructions of {escape(printable(row['server']))}:[/] " + escape(short)
            )


def _diagnostics(row: dict[str, Any]) -> list[str]:
    """Describe how a server is, in lines."""
    if row["diagnostic"] is None:
        version = f" {row['version']}" if row["version"] else ""
        return [f"{row['name'] or ''}{version} (MCP {row['protocol']})"]
    words = f"{row['phase']}: {row['diagnostic']}" if row["phase"] else row["diagnostic"]
    return [*words.split("\n"), *(f"  {line}" for line in row["stderr_tail"][-5:])]
