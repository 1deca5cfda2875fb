"""``mcp-junction demo NAME``: runs a demo server; also the greeting of ``serve --demo``."""

from __future__ import annotations

import sys
from importlib import import_module

from mcp_junction.cli.options import make_parser
from mcp_junction.demo import DEMOS


def run(argv: list[str]) -> int:
    parser = make_parser("mcp-junction demo", "Run a demo server on stdin and stdout.")
    parser.add_argument("name", choices=sorted(DEMOS), help="the server to run")
    parser.add_argument("args", nargs="*", help="arguments of the server")
    args = parser.parse_args(argv)
    return int(import_module(DEMOS[args.name]).main(args.args))


def greeting(url: str) -> str:
    """Make the text that ``serve --demo`` prints once it listens."""
    program = sys.argv[0] if sys.argv[0].endswith("mcp-junction") else "mcp-junction"
    where = "" if url.endswith(":8420") else f" --url {url}"
    return f"""
Junction is up, with three small servers behind one endpoint: clock, notes and arithmetic.

  Give it to your assistant    {url}/mcp
                               (Claude Code: claude mcp add --transport http junction {url}/mcp)
  See the servers              {program} servers list{where}
  Call a tool                  {program} tools call{where} arithmetic.evaluate \
'{{"expression": "6 * 7"}}'
  Add a server of your own     {program} servers add{where} NAME -- COMMAND [ARGS]
  Read about the REST API      {url}/api/v1/docs

Ctrl-C ends it.
"""
