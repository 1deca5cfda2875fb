"""Keeps a process small: gives free memory back to the system, after work that took much of it.

The C library keeps what was freed, for later, for each thread that allocates apart: after thousands
of tools were read, stored and classified that is a third of what the process has. Where it is not
glibc, nothing is done.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

_ARENA_MAX: Final = -8
_ARENAS: Final = 2


async def return_free_memory() -> None:
    """Return what is free, in a thread: it takes some milliseconds."""
    await asyncio.to_thread(return_free_memory_now)


def return_free_memory_now() -> None:
    """Return what is free."""
    if (trim := _find("malloc_trim")) is not None:
        trim(0)


def share_free_memory() -> None:
    """Have all threads share what is free, in two parts. Called before there are any."""
    if (mallopt := _find("mallopt")) is not None:
        mallopt(_ARENA_MAX, _ARENAS)


def _find(name: str) -> Callable[..., Any] | None:
    """Find a function of the C library."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    found: Callable[..., Any] | None = getattr(ctypes.CDLL(None), name, None)
    return found
