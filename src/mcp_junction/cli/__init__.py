"""The commands of ``mcp-junction``, one module each; ``main.py`` imports the one that is called."""
