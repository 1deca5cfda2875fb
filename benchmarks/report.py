"""The rows as a table for people, or as one JSON document."""

import json
import os
import platform
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from budgets import FAILED, MISSED, OK, SHOWN, STRETCH, Row
from registry import Case

COLOURS = {OK: "green", STRETCH: "bold green", MISSED: "bold red", FAILED: "bold red", SHOWN: "dim"}


def heading(quick: bool) -> str:
    # Neither paths nor host names: reports are pasted into issues.
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{machine}, quick run: figures are rough" if quick else machine


def number(value: float | None) -> str:
    """Three significant digits, or whole from a hundred on."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(row: Row) -> tuple[str, ...]:
    verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]"
    if row.figure is None:
        # What a program said may hold square brackets, which rich would take for markup.
        return row.case, escape(row.error), "", "", "", "", verdict, ""
    figure = row.figure
    floor = f"{number(figure.floor)} {figure.unit}" if figure.floor is not None else ""
    return (
        row.case,
        figure.what,
        floor,
        f"{number(figure.ours)} {figure.unit}",
        f"{figure.ratio:.2f}×" if figure.ratio is not None else "",
        row.limit.text(figure.unit) if row.limit else "",
        verdict,
        figure.note,
    )


def wide_console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # into a file or a pipe, columns must not wrap at 80
    return console


def show(rows: list[Row], quick: bool) -> None:
    table = Table(title=f"Junction benchmarks: {heading(quick)}", title_justify="left")
    for name, justify in (
        ("case", "left"),
        ("what", "left"),
        ("floor", "right"),
        ("ours", "right"),
        ("ratio", "right"),
        ("budget", "left"),
        ("verdict", "left"),
        ("how", "left"),
    ):
        table.add_column(name, justify=justify)
    last = None
    for row in rows:
        if last not in (None, row.case):
            table.add_section()
        first, *rest = cells(row)
        table.add_row(first if row.case != last else "", *rest)
        last = row.case
    console = wide_console()
    console.print(table)
    bad = sorted({row.case for row in rows if not row.passed})
    console.print(
        f"[bold red]over budget or failed: {', '.join(bad)}[/]" if bad else "all within budget"
    )


def as_dict(row: Row) -> dict[str, object]:
    figure = row.figure
    return {
        "case": row.case,
        "req": row.req,
        "what": figure.what if figure else None,
        "unit": figure.unit if figure else None,
        "floor": figure.floor if figure else None,
        "ours": figure.ours if figure else None,
        "ratio": figure.ratio if figure else None,
        "budget": row.limit.text(figure.unit) if figure and row.limit else None,
        "verdict": row.verdict,
        "how": figure.note if figure else "",
        "error": row.error,
    }


def show_json(rows: list[Row], quick: bool) -> None:
    document = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "quick": quick,
        "ok": all(row.passed for row in rows),
        "rows": [as_dict(row) for row in rows],
    }
    print(json.dumps(document, indent=2, ensure_ascii=False))


def show_cases(cases: Iterable[Case], as_json: bool) -> None:
    if as_json:
        found = [{"name": c.name, "req": c.req, "summary": c.summary} for c in cases]
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    table = Table("case", "measures", "requirements", box=None)
    for c in cases:
        table.add_row(c.name, c.summary, " ".join(c.req))
    wide_console().print(table)
