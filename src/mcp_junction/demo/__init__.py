"""Three small, real MCP servers: something to aggregate before anything is installed.

``clock`` tells and converts times and counts down, ``notes`` keeps text files, ``arithmetic``
computes. ``wire`` is the stdio loop they share, with the checks of arguments; ``formula`` is the
calculator behind ``arithmetic``.

Each is a program of its own (``python -m mcp_junction.demo.clock``) on the standard library alone.
The room knows nothing of the gateway, and the gateway treats these servers like any other.
"""

DEMOS: dict[str, str] = {
    "arithmetic": "mcp_junction.demo.arithmetic",
    "clock": "mcp_junction.demo.clock",
    "notes": "mcp_junction.demo.notes",
}
"""Name → module. Each module has ``main(argv: list[str]) -> int``."""
