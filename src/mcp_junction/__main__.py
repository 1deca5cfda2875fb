"""``python -m mcp_junction`` is the program."""

import sys

from mcp_junction.cli.main import main

sys.exit(main())
