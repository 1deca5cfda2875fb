"""A program whose disk is full for a while; `test_faults.py` runs it. Prints what it saw."""

import asyncio
import json
import resource
import sys
from pathlib import Path

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.audit.verify import verify
from mcp_junction.errors import StoreUnavailable
from mcp_junction.store.records import NewEvent
from mcp_junction.store.store import default_url, open_store
from mcp_junction.vault.vault import Vault

BOUND = 30
ROOM = 256 * 1024


def limit_files(size: int) -> None:
    """No file of ours may grow beyond this, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


async def main(folder: Path) -> dict[str, object]:
    vault = Vault([bytes(32)])
    points = CheckpointDirectory(folder)
    key = vault.derive_keys("audit")[0]
    seen: dict[str, object] = {"stored": 0}
    async with (
        await open_store(default_url(folder), vault) as store,
        AuditLog(store.audit, key, vault.key_id, points) as log,
    ):
        await log.flush()
        limit_files(ROOM)
        try:
            while True:
                await log.intent(log.entry("intent", "bot", "x", detail={"text": "y" * 1500}))
                seen["stored"] += 1
        except StoreUnavailable as error:
            seen["refused"] = str(error)
        for _ in range(10):
            log.record(log.entry("call", "bot", "x"))
        try:
            await store.events.append([NewEvent("x", {"text": "y" * 100_000})])
        except StoreUnavailable:
            seen["write_refused"] = True
        seen["readable"] = len(await store.audit.chains())
        seen["failing"] = log.is_failing
        limit_files(resource.RLIM_INFINITY)
        await asyncio.wait_for(log.flush(), BOUND)
        await log.intent(log.entry("intent", "bot", "x"))
        await store.events.append([NewEvent("x", {})])
        seen["lost"] = log.lost
        verdict = await verify(store.audit, [key], points.all())
        seen["findings"] = [str(finding) for finding in verdict.findings]
        seen["rows"] = verdict.rows
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
