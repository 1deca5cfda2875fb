"""Gives memory that is free in this process back to the system, after work that took much of it.

The C library keeps what was freed, for later: after thousands of tools were read, stored and
classified that is a third of what the process has. Where it is not glibc, nothing is done.
"""

from __future__ import annotations

import asyncio
import sys


async def return_free_memory() -> None:
    """Return what is free, in a thread: it takes some milliseconds."""
    if sys.platform.startswith("linux"):
        await asyncio.to_thread(_trim)


def _trim() -> None:
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
