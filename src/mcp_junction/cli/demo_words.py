"""What ``serve --demo`` says: what is there, and what to do next."""

from __future__ import annotations

import sys


def words(url: str) -> str:
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
