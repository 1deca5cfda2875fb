"""Printed by `make demo` at its end: what it has shown, and three things to do next."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / ".venv" / "bin" / "mcp-junction")
ENTRY = {"command": PROGRAM, "args": ["--config", str(ROOT / "examples" / "demo.json")]}

SEEN = """
You have just seen three MCP servers (clock, notes, arithmetic) behind one endpoint: all they
offer, each name with its server in front, and one call that went through to the right one.
"""

STEPS = {
    "1. Give it to your assistant": f"""
   Claude Desktop (Settings > Developer > Edit Config) and Cursor (~/.cursor/mcp.json) take this;
   VS Code (.vscode/mcp.json) takes it with "servers" in place of "mcpServers":
   {{"mcpServers": {{"junction": {json.dumps(ENTRY)}}}}}
""",
    "2. Put your own servers behind it": f"""
   Any file with "mcpServers" will do, for a start the one your assistant has now:
   {PROGRAM} inspect --config yours.json
""",
    "3. Check this copy": """
   Every check and every test, from nothing:
   make test
""",
}


def say(words: str, style: str = "") -> None:
    try:
        from rich.console import Console
    except ImportError:
        print(words)
    else:  # soft_wrap: a line to copy must stay one line
        Console(soft_wrap=True).print(words, style=style, markup=False, highlight=False)


if __name__ == "__main__":
    say(SEEN)
    for title, words in STEPS.items():
        say(title, "bold")
        say(words.lstrip("\n"))
