"""Has the C library keep some free memory for the next need, and give the rest back.

By itself it keeps what was freed for each thread apart: after thousands of tools were read, stored
and classified that is a third of what the process has. And it gives back, each time, what the next
page of the audit or the next large result needs again. Where it is not glibc, nothing is done.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, Final

_OPTIONS: Final = {
    ("MALLOC_ARENA_MAX", "arena_max"): (-8, 2),
    # Else each page of the audit, and each large result, costs 150 page faults and more.
    ("MALLOC_MMAP_THRESHOLD_", "mmap_threshold"): (-3, 4 * 1024 * 1024),
    ("MALLOC_TRIM_THRESHOLD_", "trim_threshold"): (-1, 8 * 1024 * 1024),
}
"""Options by the variable and the tunable that an operator sets them with: their numbers in
``malloc.h``, and our values."""
_TUNABLES: Final = "GLIBC_TUNABLES"


async def return_free_memory() -> None:
    """Return what is free, in a thread: it takes some milliseconds."""
    await asyncio.to_thread(return_free_memory_now)


def return_free_memory_now() -> None:
    """Return what is free."""
    if (trim := _find("malloc_trim")) is not None:
        trim(0)


def tune_allocator() -> None:
    """Have all threads share what is free, in two parts, and keep some of it for the next need.

    Called before there are any threads. What the operator has set stays.
    """
    if (mallopt := _find("mallopt")) is not None:
        tunables = {one.partition("=")[0] for one in os.environ.get(_TUNABLES, "").split(":")}
        for (variable, tunable), (number, value) in _OPTIONS.items():
            if variable not in os.environ and f"glibc.malloc.{tunable}" not in tunables:
                mallopt(number, value)


def _find(name: str) -> Callable[..., Any] | None:
    """Find a function of the C library."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    found: Callable[..., Any] | None = getattr(ctypes.CDLL(None), name, None)
    return found
