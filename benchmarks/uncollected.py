"""Our program without the collector of cyclic garbage: what only it would find stays, and shows.

python uncollected.py [ARGUMENTS OF mcp-junction ...]
"""

import gc
import sys

from mcp_junction.cli.main import main

if __name__ == "__main__":
    gc.disable()
    sys.exit(main())
