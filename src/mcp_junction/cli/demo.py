"""``mcp-junction demo NAME``: runs a demo server."""

from __future__ import annotations

from importlib import import_module

from mcp_junction.cli.options import make_parser, option
from mcp_junction.demo import DEMOS


def run(argv: list[str]) -> int:
    names = sorted(DEMOS)
    parser = make_parser(
        "mcp-junction demo",
        "Run a demo server on stdin and stdout.",
        "example:\n  mcp-junction demo clock\n",
        option(
            "name", metavar="NAME", choices=names, help=f"the server to run: {', '.join(names)}"
        ),
        option("args", metavar="ARG", nargs="*", default=[], help="arguments of the server"),
    )
    args = parser.parse_args(argv)
    return int(import_module(DEMOS[args.name]).main(args.args))
