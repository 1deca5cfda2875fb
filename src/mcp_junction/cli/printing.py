"""What commands print: tables for people, JSON for programs, progress while they wait."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from mcp_junction.app import Junction

COLOURS: Final = {
    "CONNECTED": "green",
    "DEGRADED": "yellow",
    "CONNECTING": "yellow",
    "ERROR": "red",
    "DISCONNECTED": "dim",
    "ABSENT": "dim",
    "quarantined": "red",
    "blocked": "red",
    "changed": "yellow",
    "flagged": "yellow",
}


def printable(text: str) -> str:
    """What somebody else chose may not steer the terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """A table, or the words for an empty one. A cell that is a state has its colour."""
    from rich.console import Console
    from rich.table import Table

    made = [[_cell(cell) for cell in row] for row in rows]
    console = Console(file=sys.stdout, emoji=False)
    if not made:
        console.print(empty, markup=False)
        return
    table = Table(*headings)
    for row in made:
        table.add_row(*row)
    console.print(table)


def _cell(value: Any) -> str:
    from rich.markup import escape

    lines = ("" if value is None else str(value)).split("\n")
    text = escape("\n".join(map(printable, lines)))
    colour = COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else text


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
