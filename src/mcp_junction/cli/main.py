"""The program ``mcp-junction``: finds the command and runs it, importing only its module.

Without a command it is the stdio mode, as clients' config files expect. Before anything is opened,
our own stdin, stdout and stderr are made safe to use: one that is closed becomes the null device,
since the next file that is opened would take its place, and what is printed would end up in it.
Letters that stdout cannot write are escaped, as in JSON.
"""

from __future__ import annotations

import codecs
import errno
import gc
import io
import os
import sys
from importlib import import_module
from typing import TextIO

from mcp_junction.cli.environment import hide_arguments, hide_secrets
from mcp_junction.errors import ConfigError, JunctionError, UsageError

COMMANDS = {
    "stdio": "serve the servers of a config file on stdin and stdout (the default)",
    "serve": "serve them over HTTP, to many clients, with a REST API",
    "servers": "show, add, connect and remove the servers of a running service",
    "tools": "list, find, call, set, approve and block the tools of a running service",
    "skills": "show skills of tools, classify tools again, decide suggested skills",
    "state": "show the numbers of servers and tools of a running service",
    "inspect": "start the servers of a config file and show how that went",
    "call": "call one tool and print its result",
    "agents": "show, add and remove the agents of a running service",
    "grants": "show, give, renew and revoke what agents may use",
    "explain": "say whether an agent may call a tool, by which rule, and what would change it",
    "metrics": "show how many calls there were, how they ended and how long they took",
    "breakers": "show and reset the circuit breakers of a running service",
    "approvals": "show, approve and deny calls that wait for a person",
    "webhook": "show what the webhook was told, and what was given up",
    "escalations": "show and acknowledge calls for which everything has failed",
    "audit": "show, check and export the record of what was done",
    "settings": "show every setting, its default, and where its value comes from",
    "vault": "show and replace the key that seals what is stored",
    "keys": "make, show and revoke the keys of HTTP clients",
    "demo": "run one of the small servers that come with the program",
}

_HIDE_THEMSELVES = ("stdio", "demo")
"""Commands that must start fast: stdio hides secrets itself, demo is given none."""

# Starting allocates much that lives as long as the process, and calls leave the collector little
# to do: with Python's threshold of 700 allocations it would cost more than all other memory work.
_THRESHOLDS = (50_000, 20, 50)
_ESCAPED = "mcp_junction.escaped"
_REPLACED: list[object] = []
"""Kept open to the end: a descriptor below 3 that is closed would be given to something else."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: list[str] | None = None) -> int:
    """Run the command that ``argv`` names, and return the exit code."""
    gc.set_threshold(*_THRESHOLDS)
    _prepare_streams()
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] not in COMMANDS and not words[0].startswith("-"):
        return _fail(2, f"there is no command {words[0]!r}\ntry: mcp-junction --help")
    name, rest = (words[0], words[1:]) if words and words[0] in COMMANDS else ("stdio", words)
    if argv is None and name not in _HIDE_THEMSELVES:
        hide_secrets()
        hide_arguments()
    command = import_module(f"mcp_junction.cli.{name}")
    try:
        code = int(command.run(rest))
        sys.stdout.flush()
    except (ConfigError, UsageError) as error:
        return _fail(2, str(error))
    except JunctionError as error:
        return _fail(1, str(error))
    except BrokenPipeError:  # nobody reads the output any more
        _discard(1)
        return 1
    except OSError as error:
        if error.errno not in _DISK_ERRORS or error.filename is not None:
            raise
        _discard(1)
        reason = f"the output cannot be written: {error.strerror}"
        return _fail(1, f"{reason}; make room, or send it elsewhere")
    except KeyboardInterrupt:
        return 130
    return code


def _fail(code: int, words: str) -> int:
    try:
        print(f"mcp-junction: {words}", file=sys.stderr, flush=True)
    except OSError:
        _discard(2)
    return code


# -- our own streams


def _prepare_streams() -> None:
    """Replace closed streams by the null device, and escape what stdout cannot encode.

    Call it before anything is opened: it would get the descriptor of a closed stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            _REPLACED.append(stream)
    codecs.register_error(_ESCAPED, _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPED)


def was_closed(stream: TextIO) -> bool:
    """Whether the process was started without this stream."""
    return stream.name == os.devnull


def _discard(fd: int) -> None:
    """Discard everything that is written to a descriptor from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    escapes = (f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return "".join(escapes), error.end


if __name__ == "__main__":
    sys.exit(main())
