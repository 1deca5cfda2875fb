"""Runs a coroutine on the fastest loop there is."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

# The path of a call makes little that only the collector can free; looking for it every 700
# allocations costs more than the rest of what a call does with memory.
_THRESHOLDS = (50_000, 20, 50)


def run_async(main: Coroutine[Any, Any, int]) -> int:
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.run(main)
    return uvloop.run(main)
