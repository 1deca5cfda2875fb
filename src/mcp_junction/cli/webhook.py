"""``mcp-junction webhook``: lists the deliveries of the webhook; retries those given up."""

from __future__ import annotations

import argparse
from typing import Any, Final

from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import do_each, print_json, print_table, printable
from mcp_junction.cli.remote import ServiceClient, path_to, run_listing
from mcp_junction.cli.values import format_moment

WEBHOOK: Final = "/api/v1/mcp/webhook"
_HEADINGS: Final = ("id", "happened", "event", "attempts", "why")


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction webhook",
        "Show what the webhook of a running `mcp-junction serve` was told of escalations and"
        "\napprovals, and which deliveries were given up after all attempts; deliver those again.",
        "examples:\n  mcp-junction webhook\n  mcp-junction webhook retry evt_17\n",
    )
    ids = ("ID", "the deliveries to make once more")
    return run_listing(
        parser, argv, _ACTIONS, ids, "give the id of a delivery, as the list shows it"
    )


def _retry(args: argparse.Namespace, remote: ServiceClient) -> int:
    return do_each(
        args,
        args.ids,
        lambda one: remote.post(path_to(WEBHOOK, one, "retry")),
        lambda one, _: f"Delivery {printable(one)} is made once more.",
    )


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = remote.get(WEBHOOK)
    if args.json:
        print_json(found)
        return 0
    counts = f"{found['delivered']} delivered, {found['waiting']} waiting, {found['failed']} failed"
    print(f"{found['url']}: {counts}")
    dead = found["dead"]
    return print_table(args, dead, _HEADINGS, map(_row, dead), "Nothing was given up.")


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["id"], format_moment(one["at"]), one["type"], one["attempts"], one["why"]


_ACTIONS: Final = {"list": _list, "retry": _retry}
