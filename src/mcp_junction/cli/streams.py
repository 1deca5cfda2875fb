"""Our own stdin, stdout and stderr, made safe to use.

One that is closed becomes the null device: otherwise the next file that is opened would take its
place, and what is printed would end up in it. Letters that stdout cannot write are escaped, as in
JSON. Imports little: it runs before anything else is opened.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

_ESCAPED = "mcp_junction.escaped"
_REPLACED: list[object] = []
"""Kept open to the end: a descriptor below 3 that is closed would be given to something else."""


def prepare() -> None:
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


def discard(fd: int) -> None:
    """Discard everything that is written to a descriptor from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    escapes = (f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return "".join(escapes), error.end
