"""``mcp-junction demo NAME``: runs a demo server."""

from __future__ import annotations

from importlib import import_module

from mcp_junction.cli.options import make_parser
from mcp_junction.demo import DEMOS


def run(argv: list[str]) -> int:
    parser = make_parser("mcp-junction demo", "Run a demo server on stdin and stdout.")
    parser.add_argument("name", choices=sorted(DEMOS), help="the server to run")
    parser.add_argument("args", nargs="*", help="arguments of the server")
    args = parser.parse_args(argv)
    return int(import_module(DEMOS[args.name]).main(args.args))
