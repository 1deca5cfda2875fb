"""Prints the output of commands: tables, JSON, and progress while servers start."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcp_junction.cli.environment import variables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mcp_junction.app import Junction

T = TypeVar("T")
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
_WIDE: Final = 200
"""Columns of a table that is not printed to a terminal."""


def printable(text: str) -> str:
    """Replace control characters, which could steer the terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_value(args: argparse.Namespace, value: T, show: Callable[[T], object]) -> int:
    """Print a value with ``--json``, else have it shown; return exit code 0."""
    if args.json:
        print_json(value)
    else:
        show(value)
    return 0


def print_message(args: argparse.Namespace, value: Any, *lines: str) -> int:
    """Print a value with ``--json``, else some lines about it; return exit code 0."""
    return print_value(args, value, lambda _: print(*lines, sep="\n"))


def print_warnings(answer: Mapping[str, Any]) -> None:
    """Print what may be wrong with what was done to stderr, with ``--json`` too."""
    for words in answer.get("warnings", ()):
        print(f"warning: {printable(words)}", file=sys.stderr)


def do_each(
    args: argparse.Namespace,
    ids: Sequence[str],
    act: Callable[[str], Any],
    describe: Callable[[str, Any], str],
    member: str = "",
) -> int:
    """Do something to each of several things, one after the other, and print what was done.

    That is printed also when a later one is refused: who runs the command again must not do the
    others twice. With ``--json`` the results are printed, as a ``member`` of an object or alone.
    """
    done: list[Any] = []
    try:
        done.extend(map(act, ids))
    finally:
        if done:
            lines = map(describe, ids, done)
            print_message(args, {member: done} if member else done, *lines)
    return 0


def print_table(
    args: argparse.Namespace,
    value: Any,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    empty: str = "",
) -> int:
    """Print a value with ``--json``, else a table of it, or ``empty``; return exit code 0.

    A cell that is a state is coloured; one that is a rich Text is printed as it is.
    """
    if args.json:
        print_json(value)
        return 0
    table, console = make_table(headings, rows), make_console()
    if table.rows:
        console.print(table)
    else:
        console.print(empty, markup=False)
    return 0


def make_console() -> Console:
    """Make the console of stdout; for a program that reads it, wide enough for a row a line."""
    from rich.console import Console

    is_read_by_people = sys.stdout.isatty() or "COLUMNS" in variables()
    return Console(file=sys.stdout, emoji=False, width=None if is_read_by_people else _WIDE)


def make_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Table:
    """Make a table whose cells cannot steer the terminal, and are never cut."""
    from rich.table import Column, Table

    columns = (Column(heading, overflow="fold") for heading in headings)
    table = Table(*columns, caption=caption or None)
    for row in rows:
        table.add_row(*map(_format_cell, row))
    return table


def _format_cell(value: Any) -> Any:
    from rich.text import Text

    if isinstance(value, Text):
        return value
    lines = ("" if value is None else str(value)).split("\n")
    text = "\n".join(map(printable, lines))
    return Text(text, COLOURS.get(text, ""))


def format_result(value: Any) -> str:
    """Return the text of a result that is only text; any other as JSON."""
    content = value.get("content") if isinstance(value, dict) else None
    if (
        isinstance(content, list)
        and content
        and all(isinstance(block, dict) and block.get("type") == "text" for block in content)
    ):
        return "\n".join(str(block.get("text", "")) for block in content)
    return json.dumps(value, indent=2, ensure_ascii=False)


_PATIENCE = 1.0


async def wait_with_progress(junction: Junction, what: Coroutine[Any, Any, None]) -> None:
    """Wait for a coroutine; at a terminal, show which servers it still waits for."""
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
