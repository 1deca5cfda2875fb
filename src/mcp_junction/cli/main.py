"""The program: finds the command and runs it. Imports a command's file only when it is the one.

Without a command the program is the stdio mode, as the clients' config files expect.
"""

from __future__ import annotations

import sys
from importlib import import_module

from mcp_junction.errors import ConfigError, UsageError

COMMANDS = {
    "stdio": "serve the servers of a config file on stdin and stdout (the default)",
    "inspect": "start the servers of a config file and show what became of them",
    "call": "call one tool and print its result",
    "demo": "run one of the small servers that come with the program",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command that ``argv`` names; the exit code."""
    words = sys.argv[1:] if argv is None else argv
    name, rest = (words[0], words[1:]) if words and words[0] in COMMANDS else ("stdio", words)
    command = import_module(f"mcp_junction.cli.{name}")
    try:
        return int(command.run(rest))
    except ConfigError as error:
        print(f"mcp-junction: {error}", file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"mcp-junction: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
