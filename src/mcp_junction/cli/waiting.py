"""Waiting that shows itself: a line on the terminal when starting servers takes over a second."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from mcp_junction.app import Junction

_PATIENCE = 1.0


async def with_progress(junction: Junction, what: Coroutine[Any, Any, None]) -> None:
    """Wait for something that servers have to be up for."""
    waiting = junction.tasks.spawn(what)
    await asyncio.wait({waiting}, timeout=_PATIENCE)
    if not waiting.done() and sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            while not waiting.done():
                late = [key for key, s in junction.servers.items() if not s.settled.is_set()]
                status.update(f"waiting for {', '.join(late)}")
                await asyncio.wait({waiting}, timeout=0.2)
    await waiting
