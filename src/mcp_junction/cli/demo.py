"""``mcp-junction demo NAME``: one of the small servers that come with the program."""

from __future__ import annotations

from importlib import import_module

from mcp_junction.cli.options import parser
from mcp_junction.demo import DEMOS


def run(argv: list[str]) -> int:
    options = parser("mcp-junction demo", "Run a demo server on stdin and stdout.")
    options.add_argument("name", choices=sorted(DEMOS), help="which one")
    options.add_argument("args", nargs="*", help="what the server itself takes")
    given = options.parse_args(argv)
    return int(import_module(DEMOS[given.name]).main(given.args))
