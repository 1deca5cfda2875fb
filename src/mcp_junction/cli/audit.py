"""``mcp-junction audit tail|verify|export``: what was done, and whether that is true."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from mcp_junction.audit.checkpoints import Checkpoint, read_exported
from mcp_junction.audit.verify import verify
from mcp_junction.cli.options import add_store_options, parser
from mcp_junction.cli.printing import printable
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.storage import Storage, opened
from mcp_junction.errors import UsageError
from mcp_junction.store.records import AuditQuery, AuditRow
from mcp_junction.telemetry.events import OutcomeName

_PAGE = 1_000
_FOLLOW = 0.5
_LATE = 60.0
_FILTERS = ("actor", "action", "target", "kind", "correlation_id", "outcome")
_COLOURS: dict[str, str] = {
    OutcomeName.OK: "green",
    OutcomeName.TOOL_ERROR: "red",
    OutcomeName.ERROR: "red",
    OutcomeName.DENIED: "magenta",
    OutcomeName.CANCELLED: "dim",
    OutcomeName.INPUT_REQUIRED: "cyan",
    OutcomeName.UNKNOWN: "yellow",
}


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction audit",
        "Show, check and export the record of decisions, calls and administrative acts.",
        "examples:\n  mcp-junction audit tail --actor build-bot\n"
        "  mcp-junction audit tail --outcome tool_error\n",
    )
    actions = options.add_subparsers(dest="action_name", required=True, metavar="ACTION")
    tail = actions.add_parser("tail", help="show the newest rows")
    tail.add_argument("-n", type=int, default=20, metavar="N", help="how many (default: 20)")
    tail.add_argument("--follow", action="store_true", help="go on as rows are written")
    for name in _FILTERS:
        flag = f"--{name.replace('_id', '').replace('_', '-')}"
        tail.add_argument(flag, dest=name, metavar="X", help=f"only rows with this {flag[2:]}")
    check = actions.add_parser("verify", help="check every row; names the first bad one")
    check.add_argument("--checkpoints", metavar="FILE", help="exported ones to check against, too")
    export = actions.add_parser("export", help="write all rows as JSON lines, oldest first")
    export.add_argument("--output", metavar="FILE", help="where to (default: stdout)")
    export.add_argument(
        "--checkpoints", action="store_true", help="count and head of each chain, not the rows"
    )
    for action in (tail, check, export):
        add_store_options(action)
    for action in (tail, check):
        action.add_argument("--json", action="store_true", help="print JSON")
    given = options.parse_args(argv)
    actors = {"tail": _tail, "verify": _verify, "export": _export}
    return run_async(_with_store(given, actors[given.action_name]))


async def _with_store(given: argparse.Namespace, act: Any) -> int:
    async with opened(given) as storage:
        code: int = await act(given, storage)
        return code


# -- tail


async def _tail(given: argparse.Namespace, storage: Storage) -> int:
    chosen = {name: getattr(given, name) for name in _FILTERS}
    seen = {_place(row) for row in await _recent(storage, chosen)} if given.follow else set()
    found = await storage.store.audit.rows(AuditQuery(**chosen, limit=max(given.n, 0)))
    rows = found[::-1]
    _show(rows, given.json, empty=not given.follow)
    seen.update(map(_place, rows))
    while given.follow:
        await asyncio.sleep(_FOLLOW)
        recent = await _recent(storage, chosen)
        _show([row for row in recent if _place(row) not in seen], given.json, empty=False)
        seen = set(map(_place, recent))
    return 0


async def _recent(storage: Storage, chosen: dict[str, Any]) -> list[AuditRow]:
    """The rows of the last minute: some come in later than others that are younger."""
    asked = AuditQuery(**chosen, limit=_PAGE, since=time.time() - _LATE)
    return (await storage.store.audit.rows(asked))[::-1]


def _place(row: AuditRow) -> tuple[str, int]:
    return row.writer, row.seq


def _show(rows: list[AuditRow], as_json: bool, *, empty: bool) -> None:
    if as_json:
        for row in rows:
            print(json.dumps(_fields(row), ensure_ascii=False))
        sys.stdout.flush()
        return
    if not rows and not empty:
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    names = ("kind", "who", "what", "target", "outcome", "ms")
    folded = (Column(name, overflow="fold") for name in names)
    when = Column("when", no_wrap=True)
    table = Table(when, *folded, box=SIMPLE_HEAD, pad_edge=False)  # people look at 80 columns
    for row in rows:
        result = row.outcome or row.decision or ""
        took = "" if row.latency_ms is None else f"{row.latency_ms:.1f}"
        cells = (row.kind, row.actor, row.action, row.target or "", result, took)
        texts = [escape(printable(cell)) for cell in cells]
        if colour := _COLOURS.get(result):
            texts[-2] = f"[{colour}]{texts[-2]}[/]"
        table.add_row(_moment(row.at), *texts)
    Console(file=sys.stdout, emoji=False).print(table if rows else "There are no rows yet.")


def _fields(row: AuditRow) -> dict[str, Any]:
    fields = dict(zip(AuditRow.__struct_fields__, msgspec.structs.astuple(row), strict=True))
    fields["detail"] = None if row.detail is None else json.loads(row.detail)
    return fields


def _moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(at))


# -- verify


async def _verify(given: argparse.Namespace, storage: Storage) -> int:
    points = storage.checkpoints.all() + _exported(given.checkpoints)
    verdict = await verify(storage.store.audit, storage.audit_keys, points)
    if given.json:
        findings = [finding._asdict() for finding in verdict.findings]
        report = {"rows": verdict.rows, "chains": verdict.chains, "findings": findings}
        print(json.dumps({"sound": not findings, **report}))
    elif verdict.findings:
        for finding in verdict.findings:
            print(finding)
    else:
        print(f"{verdict.rows} rows in {verdict.chains} chains: sound")
    return 1 if verdict.findings else 0


def _exported(path: str | None) -> list[Checkpoint]:
    if path is None:
        return []
    try:
        return read_exported(Path(path))
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--checkpoints {path} cannot be read: {error}") from None


# -- export


async def _export(given: argparse.Namespace, storage: Storage) -> int:
    if given.output is None:
        return await _write(given, storage, sys.stdout)
    try:
        with Path(given.output).open("w", encoding="utf-8") as file:  # noqa: ASYNC230 - a command
            return await _write(given, storage, file)
    except OSError as error:
        raise UsageError(f"--output {given.output}: {error.strerror}") from None


async def _write(given: argparse.Namespace, storage: Storage, file: Any) -> int:
    if given.checkpoints:
        for point in storage.checkpoints.all():
            print(msgspec.json.encode(point).decode(), file=file)
        return 0
    trail = storage.store.audit
    for writer in await trail.chains():
        after = 0
        while pages := await trail.pages(writer, after):
            for row in itertools.chain.from_iterable(page.rows() for page in pages):
                print(json.dumps(_fields(row), ensure_ascii=False), file=file)
            after = pages[-1].last_seq
    return 0
