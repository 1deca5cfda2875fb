"""The program: finds the command and runs it. Imports a command's file only when it is the one.

Without a command the program is the stdio mode, as the clients' config files expect.
"""

from __future__ import annotations

import errno
import gc
import sys
from importlib import import_module

from mcp_junction.cli import streams
from mcp_junction.cli.environment import hide_arguments, hide_secrets
from mcp_junction.errors import ConfigError, JunctionError, UsageError

COMMANDS = {
    "stdio": "serve the servers of a config file on stdin and stdout (the default)",
    "serve": "serve them over HTTP, to many clients, with a REST API",
    "servers": "show, add, connect and remove the servers of a running service",
    "tools": "list, find, call, approve and block the tools of a running service",
    "skills": "show what the tools of a running service are good for",
    "state": "show how a running service stands",
    "inspect": "start the servers of a config file and show what became of them",
    "call": "call one tool and print its result",
    "audit": "show, check and export the record of what was done",
    "keys": "make, show and revoke the keys of HTTP clients",
    "demo": "run one of the small servers that come with the program",
}

_HIDE_THEMSELVES = ("stdio", "demo")
"""Commands that must start fast: stdio hides secrets itself, demo is given none."""

# Starting makes much that lives as long as we do, and the path of a call little that only the
# collector can free; looking for it every 700 allocations costs more than the rest of what either
# does with memory.
_THRESHOLDS = (50_000, 20, 50)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: list[str] | None = None) -> int:
    """Run the command that ``argv`` names; the exit code."""
    gc.set_threshold(*_THRESHOLDS)
    streams.settle()
    words = sys.argv[1:] if argv is None else argv
    name, rest = (words[0], words[1:]) if words and words[0] in COMMANDS else ("stdio", words)
    if argv is None and name not in _HIDE_THEMSELVES:
        hide_secrets()
        hide_arguments()
    command = import_module(f"mcp_junction.cli.{name}")
    try:
        code = int(command.run(rest))
        sys.stdout.flush()
    except (ConfigError, UsageError) as error:
        return _complain(2, str(error))
    except JunctionError as error:
        return _complain(1, str(error))
    except BrokenPipeError:  # the reader had enough: there is nobody left to tell
        streams.drop(1)
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        streams.drop(1)
        said = f"the output cannot be written: {error.strerror}"
        return _complain(1, f"{said}; make room, or send it elsewhere")
    except KeyboardInterrupt:
        return 130
    return code


def _complain(code: int, words: str) -> int:
    try:
        print(f"mcp-junction: {words}", file=sys.stderr, flush=True)
    except OSError:
        streams.drop(2)
    return code


if __name__ == "__main__":
    sys.exit(main())
