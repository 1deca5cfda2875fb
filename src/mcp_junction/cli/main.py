"""The program: finds the command and runs it. Imports a command's file only when it is the one.

Without a command the program is the stdio mode, as the clients' config files expect.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

from mcp_junction.errors import ConfigError, JunctionError, UsageError

COMMANDS = {
    "stdio": "serve the servers of a config file on stdin and stdout (the default)",
    "serve": "serve them over HTTP, to many clients, with a REST API",
    "servers": "show, add, connect and remove the servers of a running service",
    "tools": "list, find and call the tools of a running service",
    "skills": "show what the tools of a running service are good for",
    "state": "show how a running service stands",
    "inspect": "start the servers of a config file and show what became of them",
    "call": "call one tool and print its result",
    "audit": "show, check and export the record of what was done",
    "keys": "make, show and revoke the keys of HTTP clients",
    "demo": "run one of the small servers that come with the program",
}

# Starting makes much that lives as long as we do, and the path of a call little that only the
# collector can free; looking for it every 700 allocations costs more than the rest of what either
# does with memory.
_THRESHOLDS = (50_000, 20, 50)


def main(argv: list[str] | None = None) -> int:
    """Run the command that ``argv`` names; the exit code."""
    gc.set_threshold(*_THRESHOLDS)
    words = sys.argv[1:] if argv is None else argv
    name, rest = (words[0], words[1:]) if words and words[0] in COMMANDS else ("stdio", words)
    command = import_module(f"mcp_junction.cli.{name}")
    try:
        code = int(command.run(rest))
        sys.stdout.flush()
    except ConfigError as error:
        print(f"mcp-junction: {error}", file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"mcp-junction: {error}", file=sys.stderr)
        return 2
    except JunctionError as error:
        print(f"mcp-junction: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader had enough: there is nobody left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
