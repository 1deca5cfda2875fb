"""``mcp-junction keys create|list|revoke``: bearer keys for the HTTP endpoint."""

from __future__ import annotations

import argparse
import json
import sys

from mcp_junction.cli.options import add_data_dir, data_dir, parser
from mcp_junction.identity.keys import Key, KeyRing
from mcp_junction.policy.principal import Role

_ROLES = [role.value for role in Role if role is not Role.OWNER]


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction keys",
        "Make, show and revoke the keys that clients of `mcp-junction serve` present.",
        "example:\n  mcp-junction keys create --role agent --agent build-bot\n",
    )
    actions = options.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it, once")
    create.add_argument("--role", choices=_ROLES, default=Role.AGENT.value, help="what it may do")
    create.add_argument("--agent", metavar="ID", help="whom it speaks for (default: the role)")
    listing = actions.add_parser("list", help="show all keys; never the keys themselves")
    revoke = actions.add_parser("revoke", help="end a key; it holds at once")
    revoke.add_argument("id", metavar="ID", help="as shown by list")
    for action in (create, listing, revoke):
        add_data_dir(action)
        action.add_argument("--json", action="store_true", help="print JSON")
    given = options.parse_args(argv)
    ring = KeyRing(data_dir(given))
    actors = {"create": _create, "list": _list, "revoke": _revoke}
    return actors[given.action](given, ring)


def _create(given: argparse.Namespace, ring: KeyRing) -> int:
    key, text = ring.create(Role(given.role), given.agent or given.role)
    if given.json:
        print(json.dumps({**_shown(key), "key": text}))
        return 0
    print(text)
    print(f"Key {key.id} for {key.agent} ({key.role}). It is not shown again.", file=sys.stderr)
    return 0


def _list(given: argparse.Namespace, ring: KeyRing) -> int:
    keys = ring.all()
    if given.json:
        print(json.dumps([_shown(key) for key in keys], indent=2))
        return 0
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("id", "role", "agent", "created", "state")
    for key in keys:
        state = f"[red]revoked {key.revoked_at}[/]" if key.revoked_at else "[green]in force[/]"
        table.add_row(key.id, key.role, escape(key.agent), key.created_at, state)
    Console(file=sys.stdout).print(table if keys else "There are no keys yet.")
    return 0


def _revoke(given: argparse.Namespace, ring: KeyRing) -> int:
    key = ring.revoke(given.id)
    if given.json:
        print(json.dumps(_shown(key)))
    else:
        print(f"Key {key.id} of {key.agent} is revoked.", file=sys.stderr)
    return 0


def _shown(key: Key) -> dict[str, str | None]:
    return {
        "id": key.id,
        "role": key.role.value,
        "agent": key.agent,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }
