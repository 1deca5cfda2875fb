"""Hides secrets in this process's environment and command line from other processes.

Processes of the same user, such as our servers, could read them in ``/proc/PID/environ``. Removing
a variable does not help: the system shows the memory in which the process received its variables.
So the values of secrets are overwritten there and in the command line, and the process is marked
as not dumpable (no debugger, no core dump). ``variables`` still returns the hidden ones, since
servers' definitions refer to them.

Without ``/proc`` the variables are only removed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator

from mcp_junction.config.variables import is_secret_variable

DUMPABLE = "JUNCTION_DUMPABLE"
"""Set to 1 to have debuggers, profilers and core dumps work."""
_PR_SET_DUMPABLE = 4
_ARGUMENTS, _VARIABLES = 45, 47
"""Fields of ``/proc/self/stat``, after the name, where their memory begins; the next is its end."""

_hidden: dict[str, str] = {}


def variables() -> dict[str, str]:
    """Return all environment variables of this process, hidden ones too."""
    return {**_hidden, **os.environ}


def hidden_values() -> list[str]:
    """Return the values of the hidden variables."""
    return list(_hidden.values())


def hide_secrets() -> None:
    """Overwrite secrets in the visible environment, and mark the process as not dumpable."""
    _hidden.clear()
    _hidden.update(
        (name, value)
        for name, value in os.environ.items()
        if value and is_secret_variable(name, value) and not _is_path(value)
    )
    if _hidden:
        names = frozenset(map(os.fsencode, _hidden))
        _overwrite(_VARIABLES, lambda entries: _value_spans(entries, names), b"\0")
        for name in _hidden:
            del os.environ[name]
    if os.environ.get(DUMPABLE) != "1" and sys.platform == "linux":
        import ctypes  # two milliseconds that other systems need not spend

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def hide_arguments() -> None:
    """Overwrite secrets in the visible command line."""
    from mcp_junction.redaction.connections import mask_connection

    words = sys.argv[1:]
    masked = mask_connection({"args": words})["args"]
    secret = frozenset(
        os.fsencode(word) for word, shown in zip(words, masked, strict=True) if word != shown
    )
    if secret:
        _overwrite(
            _ARGUMENTS,
            lambda entries: ((at, len(word)) for at, word in entries if word in secret),
            b"*",
        )


Span = tuple[int, int]


def _value_spans(entries: Iterable[tuple[int, bytes]], names: frozenset[bytes]) -> Iterator[Span]:
    for at, entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals and name in names:
            yield at + len(name) + 1, len(value)


def _overwrite(
    where: int, choose: Callable[[Iterable[tuple[int, bytes]]], Iterable[Span]], by: bytes
) -> None:
    """Overwrite parts of the memory that ``/proc/PID/environ`` or ``cmdline`` shows."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[where]), int(fields[where + 1])
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end:
        return
    import ctypes

    entries = []
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        entries.append((at, entry))
        at += len(entry) + 1
    for place, size in choose(entries):
        ctypes.memset(place, by[0], size)


def _is_path(value: str) -> bool:
    """Whether a value is the path of something that exists."""
    return value.startswith(("/", "~")) and os.path.exists(os.path.expanduser(value))
