"""Runs a coroutine on the fastest loop there is, and has signals end it."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

_THRESHOLDS = (10_000, 10, 100)
"""For ``gc.set_threshold``: a usual collection looks at 10,000 objects, which takes about 2 ms."""
_SWITCH_SECONDS = 0.0005
"""With Python's own 5 ms, each turn of the loop waits as long while a thread hashes or stores."""
_AGAIN = 0.5
"""Seconds within which a signal is the same one again: whoever started us may pass it on."""


def run_async(main: Coroutine[Any, Any, int]) -> int:
    gc.freeze()
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.run(main)
    return uvloop.run(main)


def tune_interpreter() -> None:
    """Tune the garbage collector and thread switching so that neither holds up calls for long.

    Objects made so far live as long as the process: the collector skips them from now on. A thread
    that waits for the interpreter's lock, the loop's above all, gets it after half a millisecond.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_SECONDS)


def end_on(
    numbers: Iterable[int],
    stop: Callable[[], None],
    is_ending: Callable[[], bool] = lambda: False,
) -> asyncio.Event:
    """Call ``stop`` at these signals. The event tells to wait for nobody: a signal has come again,
    or after the end had begun for another reason."""
    loop, hurried = asyncio.get_running_loop(), asyncio.Event()
    first: float | None = None

    def ended() -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            if is_ending():
                hurried.set()
            stop()
        elif loop.time() - first > _AGAIN:
            hurried.set()

    for number in numbers:
        loop.add_signal_handler(number, ended)
    return hurried
