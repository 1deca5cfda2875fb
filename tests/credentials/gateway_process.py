"""`mcp-junction` as a process whose leases on credentials last as the first argument says.

Else a test would wait for seconds until the lease of a process that was killed is over.
"""

import sys

from mcp_junction.cli.main import main
from mcp_junction.credentials import kinds

if __name__ == "__main__":
    kinds.LEASE = float(sys.argv.pop(1))
    sys.exit(main())
