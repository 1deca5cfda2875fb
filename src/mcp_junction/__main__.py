"""Runs the command line of ``mcp-junction`` for ``python -m mcp_junction``."""

import sys

from mcp_junction.cli.main import main

sys.exit(main())
