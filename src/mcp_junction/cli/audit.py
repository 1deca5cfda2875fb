"""``mcp-junction audit tail|show|verify|reindex|export``: shows, checks and exports the audit."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_junction.audit.checkpoints import Checkpoint, read_exported
from mcp_junction.audit.maintenance import reindex
from mcp_junction.audit.verify import verify
from mcp_junction.cli.options import (
    action,
    add_actions,
    add_json,
    add_store_options,
    make_parser,
    option,
)
from mcp_junction.cli.printing import make_console, printable
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.storage import Storage, open_storage
from mcp_junction.cli.values import parse_past
from mcp_junction.errors import UsageError
from mcp_junction.policy.decision import ALLOW, DENY
from mcp_junction.store.audit_records import UNKNOWN, AuditQuery, AuditRow
from mcp_junction.telemetry.events import OutcomeName

_PAGE = 1_000
_FOLLOW = 0.5
_LATE = 60.0
_MAX_DIGITS = 9
_FILTERS = {
    "agent": "done in the name of this agent",
    "actor": "done by this principal",
    "server": "about this server: its id or name",
    "tool": "about this tool: its server's own name for it, or server.tool",
    "decision": "decided so: ALLOW, DENY or unknown",
    "correlation": "with this correlation id",
    "action": "with this action",
    "target": "with this target",
    "kind": "of this kind",
    "outcome": "with this outcome",
}
_DECISIONS = {"allow": ALLOW, "deny": DENY, "unknown": UNKNOWN}
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
        "examples:\n  mcp-junction audit tail --agent build-bot --since 2h\n"
        "  mcp-junction audit tail --decision DENY\n"
        "  mcp-junction audit show --correlation REQ-17\n",
    )
    add_actions(parser, _ACTIONS)
    args = parser.parse_args(argv)
    return run_async(_with_store(args))


def _read_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows")
    return int(text)


async def _with_store(args: argparse.Namespace) -> int:
    async with open_storage(args, must_exist=True) as storage:
        code: int = await args.act(args, storage)
        return code


# -- tail


async def _tail(args: argparse.Namespace, storage: Storage) -> int:
    chosen = await _read_filters(args, storage)
    since = None if args.since is None else parse_past(args.since, "--since")
    follows = args.action_name == "tail" and args.follow
    seen = {_row_key(row) for row in await _recent(storage, chosen)} if follows else set()
    query = AuditQuery(**chosen, since=since, limit=args.n)
    rows = (await storage.store.audit.rows(query))[::-1]
    if args.action_name == "show" and rows and not args.json:
        _show_whole(rows)
        return 0
    is_filtered = since is not None or any(chosen.values())
    _show(
        rows,
        args.json,
        empty="" if follows or not args.n else _NO_MATCH if is_filtered else _NO_ROWS,
    )
    seen.update(map(_row_key, rows))
    while follows:
        await asyncio.sleep(_FOLLOW)
        recent = await _recent(storage, chosen)
        _show([row for row in recent if _row_key(row) not in seen], args.json, empty="")
        seen = set(map(_row_key, recent))
    return 0


async def _read_filters(args: argparse.Namespace, storage: Storage) -> dict[str, Any]:
    """Return the filters that were given, as the fields of a query."""
    given = {name: getattr(args, name) for name in _FILTERS}
    decision, server = given["decision"], given.pop("server")
    if decision is not None:
        given["decision"] = _DECISIONS.get(decision.lower())
        if given["decision"] is None:
            raise UsageError("--decision must be ALLOW, DENY or unknown")
    if server is not None:
        record = await storage.store.servers.find(server)
        server = server if record is None else record.id
    correlation = given.pop("correlation")
    return {**given, "server_id": server, "correlation_id": correlation}


async def _recent(storage: Storage, chosen: dict[str, Any]) -> list[AuditRow]:
    """Read the rows of the last minute: processes store them a little out of order."""
    query = AuditQuery(**chosen, limit=_PAGE, since=time.time() - _LATE)
    return (await storage.store.audit.rows(query))[::-1]


def _row_key(row: AuditRow) -> tuple[str, int]:
    return row.writer, row.seq


_NO_ROWS = "There are no rows yet."
_NO_MATCH = "No rows match."


def _show(rows: list[AuditRow], as_json: bool, *, empty: str) -> None:
    if as_json:
        for row in rows:
            print(json.dumps(_fields(row), ensure_ascii=False))
        sys.stdout.flush()
        return
    if not rows and not empty:
        return
    from rich.box import SIMPLE_HEAD
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
    make_console().print(table if rows else empty)


def _show_whole(rows: list[AuditRow]) -> None:
    """Print each row with all fields that it has, and an empty line after it."""
    for row in rows:
        print(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.at)), f"{row.writer}:{row.seq}")
        fields = {**_fields(row), "agent_id": row.acting_agent}
        for name, value in fields.items():
            if name not in _IN_TITLE and value not in (None, "", False):
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                print(f"  {name:15}{printable(text)}")
        print()


_IN_TITLE = ("writer", "seq", "at")


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
        print(json.dumps({"sound": not findings, **report, "index": verdict.index_faults}))
    elif verdict.findings:
        for finding in verdict.findings:
            print(finding)
    else:
        print(f"{_count(verdict.rows, 'row')} in {_count(verdict.chains, 'chain')}: sound")
    if verdict.index_faults and not args.json:
        print(*verdict.index_faults, sep="\n")
        print("Filters may miss rows; make the index anew: mcp-junction audit reindex")
    return 1 if verdict.findings or verdict.index_faults else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


async def _reindex(_: argparse.Namespace, storage: Storage) -> int:
    pages = await reindex(storage.store.audit, time.time())
    print(f"{_count(pages, 'page')} indexed")
    return 0


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


_SHOWN: Final = (
    option("-n", type=_read_count, default=20, metavar="N", help="how many rows (default: 20)"),
    *(
        option(f"--{name}", metavar="X", help=f"only rows {words}")
        for name, words in _FILTERS.items()
    ),
    option("--since", metavar="TIME", help="only rows from then on: like 2h, 7d or 2027-01-31"),
    add_store_options,
    add_json,
)
_ACTIONS: Final = {
    "tail": action(
        _tail,
        "show the newest rows, a line each",
        option("--follow", action="store_true", help="go on showing rows as they are written"),
        *_SHOWN,
    ),
    "show": action(_tail, "show the newest rows with all that they tell", *_SHOWN),
    "verify": action(
        _verify,
        "check every row; report the first bad one of each chain",
        option(
            "--checkpoints", metavar="FILE", help="also check against these exported checkpoints"
        ),
        add_store_options,
        add_json,
    ),
    "export": action(
        _export,
        "write all rows as JSON lines, oldest first",
        option("--output", metavar="FILE", help="the file to write (default: stdout)"),
        option(
            "--checkpoints",
            action="store_true",
            help="write the checkpoint of each chain instead of the rows",
        ),
        add_store_options,
    ),
    "reindex": action(_reindex, "make the index that filters use anew", add_store_options),
}
