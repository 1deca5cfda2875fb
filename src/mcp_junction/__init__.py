"""Junction: one MCP endpoint for many MCP servers.

The package is a set of rooms that import downward only; ``ARCHITECTURE.md`` draws them. This module
holds the version and nothing else, so that importing it costs nothing.
"""

__version__ = "0.1.0"
