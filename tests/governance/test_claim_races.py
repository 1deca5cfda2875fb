"""Races of processes for one idempotency key: one runs, all get its answer."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

PROCESS = Path(__file__).with_name("claim_process.py")
BOUND = 60.0
CALLERS = 17


@pytest.mark.req("REQ-MCP-CALL-003", "F-13", "R-IDEMPOTENCY")
async def test_of_fifty_callers_in_several_processes_one_runs(store, store_url, tmp_path):
    """Three processes on PostgreSQL; two on one SQLite file, which one service at a time uses."""
    runs, count = tmp_path / "runs", 2 if store_url.startswith("sqlite") else 3
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROCESS),
            store_url,
            str(tmp_path / f"data-{number}"),
            str(runs),
            str(CALLERS),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(count)
    ]
    async with asyncio.timeout(BOUND):
        for process in started:
            assert await process.stdout.readline() == b"ready\n"
        told = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    answers = [answer for out, _ in told for answer in json.loads(out)]
    (runner,) = runs.read_text().split()
    assert answers == [f"ran by {runner}"] * (CALLERS * count)
