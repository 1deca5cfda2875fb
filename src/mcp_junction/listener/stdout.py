"""The real stdout, taken aside before anything else runs. Apart, so that it imports nothing."""

from __future__ import annotations

import os
import sys


def take_stdout() -> int:
    """A file descriptor of the real stdout; from now on fd 1 is stderr."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    return real


def restore_stdout(real: int) -> None:
    """Nothing will be served: fd 1 is the real stdout again."""
    os.dup2(real, 1)
    os.close(real)
