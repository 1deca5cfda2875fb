"""``mcp-junction settings``: shows what a service would run with, or one does, and why."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from mcp_junction.cli.options import (
    add_config_options,
    add_service_options,
    make_parser,
    option,
    read_config,
    set_up_logging,
)
from mcp_junction.cli.printing import print_table
from mcp_junction.cli.remote import ServiceClient, add_address_options

SETTINGS: Final = "/api/v1/settings"
_COLOURS: Final = {"default": "dim", "command line": "cyan"}


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction settings",
        "Show each setting: its value, its default, and where the value comes from. By default it"
        "\nis what `mcp-junction serve` would use with the same options, in this environment; with"
        "\n--running, what a running service uses. Secrets are masked.",
        "examples:\n  mcp-junction settings --changed\n"
        "  mcp-junction settings --config mcp.json --json\n"
        "  MCP_RETRY_MAX_ATTEMPTS=5 mcp-junction settings retry circuit\n"
        "  mcp-junction settings --running\n",
        option(
            "words",
            metavar="WORD",
            nargs="*",
            help="only settings with one of these in their names",
        ),
        option(
            "--changed", action="store_true", help="only settings that do not have their default"
        ),
        option("--running", action="store_true", help="ask the running service, over REST"),
        option("--json", action="store_true", help="print JSON"),
        add_address_options,
        add_config_options,
        add_service_options,
    )
    args = parser.parse_args(argv)
    set_up_logging(args)
    found = [one for one in _read(args) if _is_wanted(args, one)]
    empty = _NO_MATCH if args.words else _NONE
    print_table(args, found, ("setting", "value", "default", "source"), map(_row, found), empty)
    if not args.json:
        _print_notes(found)
    return 0


_NONE: Final = "No setting differs from its default; without --changed all are shown."
_NO_MATCH: Final = "No setting matches; without WORD and --changed all are shown."


def _read(args: argparse.Namespace) -> list[dict[str, Any]]:
    if args.running:
        items: list[dict[str, Any]] = ServiceClient.from_options(args).get(SETTINGS)["items"]
        return items
    # Imported late: --help does not need it.
    import msgspec

    from mcp_junction.redaction.settings import show_settings

    config = read_config(args, service=True)
    return [msgspec.to_builtins(one) for one in show_settings(config.settings, config.sources)]


def _is_wanted(args: argparse.Namespace, one: dict[str, Any]) -> bool:
    if args.changed and one["source"] == "default":
        return False
    return not args.words or any(word in one["name"] for word in args.words)


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    from rich.text import Text

    source = f"{one['source']} {one['place']}".strip()
    colour = _COLOURS.get(one["source"], "yellow")
    is_default = one["value"] == one["default"]
    return (
        one["name"],
        Text(_format(one["value"]), "" if is_default else "bold"),
        Text(_format(one["default"]), "dim"),
        Text(source, colour),
    )


def _format(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "–"
    return value if isinstance(value, str) else json.dumps(value)


def _print_notes(found: list[dict[str, Any]]) -> None:
    if any(one["needs_restart"] for one in found):
        print("Settings are read when `serve` starts: restart it to apply a change.")
    notes: dict[str, list[str]] = {}
    for one in found:
        if one["note"]:
            notes.setdefault(one["note"], []).append(one["name"])
    for note, names in notes.items():
        print(f"{', '.join(names)}: {note}.")
