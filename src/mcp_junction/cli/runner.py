"""Runs a command's coroutine on uvloop, and stops it on signals."""

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
"""Seconds within which a repeated signal is ignored: a parent process may forward it."""


def run_async(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on the fastest event loop there is."""
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


def stop_on_signals(
    numbers: Iterable[int],
    stop: Callable[[], None],
    is_ending: Callable[[], bool] = lambda: False,
) -> asyncio.Event:
    """Call ``stop`` at these signals.

    The event that is returned is set when a signal comes again, or when the process was ending
    already: then it should not wait for anything.
    """
    loop, hurried = asyncio.get_running_loop(), asyncio.Event()
    first: float | None = None

    def on_signal() -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            if is_ending():
                hurried.set()
            stop()
        elif loop.time() - first > _AGAIN:
            hurried.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    return hurried
