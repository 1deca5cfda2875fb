"""``mcp-junction audit tail|verify|export``: shows, checks and exports the audit."""

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
from mcp_junction.cli.options import add_store_options, make_parser
from mcp_junction.cli.printing import printable
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.storage import Storage, open_storage
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
    parser = make_parser(
        "mcp-junction audit",
        "Show, check and export the record of decisions, calls and administrative acts.",
        "examples:\n  mcp-junction audit tail --actor build-bot\n"
        "  mcp-junction audit tail --outcome tool_error\n",
    )
    actions = parser.add_subparsers(dest="action_name", required=True, metavar="ACTION")
    tail = actions.add_parser("tail", help="show the newest rows")
    tail.add_argument("-n", type=int, default=20, metavar="N", help="how many rows (default: 20)")
    tail.add_argument(
        "--follow", action="store_true", help="go on showing rows as they are written"
    )
    for name in _FILTERS:
        flag = f"--{name.replace('_id', '').replace('_', '-')}"
        tail.add_argument(flag, dest=name, metavar="X", help=f"only rows with this {flag[2:]}")
    check = actions.add_parser(
        "verify", help="check every row; report the first bad one of each chain"
    )
    check.add_argument(
        "--checkpoints", metavar="FILE", help="also check against these exported checkpoints"
    )
    export = actions.add_parser("export", help="write all rows as JSON lines, oldest first")
    export.add_argument("--output", metavar="FILE", help="the file to write (default: stdout)")
    export.add_argument(
        "--checkpoints",
        action="store_true",
        help="write the checkpoint of each chain instead of the rows",
    )
    for action in (tail, check, export):
        add_store_options(action)
    for action in (tail, check):
        action.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    actors = {"tail": _tail, "verify": _verify, "export": _export}
    return run_async(_with_store(args, actors[args.action_name]))


async def _with_store(args: argparse.Namespace, act: Any) -> int:
    async with open_storage(args) as storage:
        code: int = await act(args, storage)
        return code


# -- tail


async def _tail(args: argparse.Namespace, storage: Storage) -> int:
    chosen = {name: getattr(args, name) for name in _FILTERS}
    seen = {_row_key(row) for row in await _recent(storage, chosen)} if args.follow else set()
    found = await storage.store.audit.rows(AuditQuery(**chosen, limit=max(args.n, 0)))
    rows = found[::-1]
    _show(rows, args.json, empty=not args.follow)
    seen.update(map(_row_key, rows))
    while args.follow:
        await asyncio.sleep(_FOLLOW)
        recent = await _recent(storage, chosen)
        _show([row for row in recent if _row_key(row) not in seen], args.json, empty=False)
        seen = set(map(_row_key, recent))
    return 0


async def _recent(storage: Storage, chosen: dict[str, Any]) -> list[AuditRow]:
    """Read the rows of the last minute: processes store them a little out of order."""
    query = AuditQuery(**chosen, limit=_PAGE, since=time.time() - _LATE)
    return (await storage.store.audit.rows(query))[::-1]


def _row_key(row: AuditRow) -> tuple[str, int]:
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
        table.add_row(time.strftime("%m-%d %H:%M:%S", time.gmtime(row.at)), *texts)
    Console(file=sys.stdout, emoji=False).print(table if rows else "There are no rows yet.")


def _fields(row: AuditRow) -> dict[str, Any]:
    fields = dict(zip(AuditRow.__struct_fields__, msgspec.structs.astuple(row), strict=True))
    fields["detail"] = None if row.detail is None else json.loads(row.detail)
    return fields


# -- verify


async def _verify(args: argparse.Namespace, storage: Storage) -> int:
    points = storage.checkpoints.all() + _read_checkpoints(args.checkpoints)
    verdict = await verify(storage.store.audit, storage.audit_keys, points)
    if args.json:
        findings = [finding._asdict() for finding in verdict.findings]
        report = {"rows": verdict.rows, "chains": verdict.chains, "findings": findings}
        print(json.dumps({"sound": not findings, **report}))
    elif verdict.findings:
        for finding in verdict.findings:
            print(finding)
    else:
        print(f"{verdict.rows} rows in {verdict.chains} chains: sound")
    return 1 if verdict.findings else 0


def _read_checkpoints(path: str | None) -> list[Checkpoint]:
    if path is None:
        return []
    try:
        return read_exported(Path(path))
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--checkpoints {path} cannot be read: {error}") from None


# -- export


async def _export(args: argparse.Namespace, storage: Storage) -> int:
    if args.output is None:
        return await _write(args, storage, sys.stdout)
    try:
        with Path(args.output).open("w", encoding="utf-8") as file:  # noqa: ASYNC230 - a command
            return await _write(args, storage, file)
    except OSError as error:
        raise UsageError(f"--output {args.output}: {error.strerror}") from None


async def _write(args: argparse.Namespace, storage: Storage, file: Any) -> int:
    if args.checkpoints:
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
