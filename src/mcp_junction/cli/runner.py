"""Runs a coroutine on the fastest loop there is."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any


def run_async(main: Coroutine[Any, Any, int]) -> int:
    gc.freeze()
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.run(main)
    return uvloop.run(main)
