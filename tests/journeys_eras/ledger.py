"""What a server lived through: one line for each event, in a file that a test reads.

Written by the server's process and read by the test's; nothing else is between them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BOUND = 20.0

_path: Path | None = None


def open_file(path: str) -> None:
    global _path
    _path = Path(path)


def note(event: str, nonce: str) -> None:
    """Add a line."""
    if _path is not None:
        with _path.open("a", encoding="utf-8") as file:
            file.write(f"{event} {nonce}\n")


@contextmanager
def noted(nonce: str) -> Iterator[None]:
    """Say when a call starts, and how it ended."""
    note("started", nonce)
    try:
        yield
    except Exception:
        note("failed", nonce)
        raise
    except BaseException:  # the call's task was cancelled
        note("cancelled", nonce)
        raise
    note("ended", nonce)


class Ledger:
    """The test's side."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def events(self, nonce: str) -> list[str]:
        """What happened to the call with this nonce, in order."""
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        return [event for event, _, of in (line.partition(" ") for line in lines) if of == nonce]

    def wait_for(self, nonce: str, event: str, bound: float = BOUND) -> list[str]:
        """All events of a nonce, once this one is among them."""
        until = time.monotonic() + bound
        while event not in (found := self.events(nonce)):
            if time.monotonic() > until:
                raise TimeoutError(f"{nonce} was not {event} within {bound:g} s: {found}")
            time.sleep(0.02)
        return found
