"""A process that claims one idempotency key many times at once, for the tests of races.

    python claim_process.py STORE_URL FOLDER RUNS CALLERS

It waits for a line on stdin, and then claims; whoever may run appends a line to the file RUNS. It
prints the answers of all callers, as a JSON array.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from msgspec import Raw

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.governance.idempotency_claims import IdempotencyClaims, KeptResult
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.resilience.idempotency import ClaimAction, ClaimEnd, ClaimKey
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault

KEY = ClaimKey("agent:a", "s", "t", "raced")


async def main(url: str, folder: str, runs: str, callers: int) -> None:
    vault = Vault([bytes(range(32))])
    points = CheckpointDirectory(Path(folder))
    key = vault.derive_keys("audit")[0]
    async with (
        await open_store(url, vault) as store,
        AuditLog(store.audit, key, vault.key_id, points) as audit,
    ):
        claims = IdempotencyClaims(store.claims, store.audit, audit.writer, SystemClock(), 600.0)

        async def call() -> str:
            verdict = await claims.claim(KEY, "x", asyncio.Event())
            assert verdict is not None
            if verdict.action is not ClaimAction.RUN:
                return verdict.action.value if verdict.kept is None else str(verdict.kept.target)
            file = os.open(runs, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, f"{os.getpid()}\n".encode())
            os.close(file)
            await asyncio.sleep(0.05)  # the work of the call
            ran = f"ran by {os.getpid()}"
            await claims.settle(
                verdict.claim_id, ClaimEnd.KEEP, KeptResult("result", ran, Raw(b"{}"))
            )
            return ran

        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(await asyncio.gather(*(call() for _ in range(callers)))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
