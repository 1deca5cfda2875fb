"""A process that takes approvals of a store, all at once, and prints those that it got.

Run as ``approver.py URL KEY BINDINGS…``, the vault's key as hex; it begins with a line on stdin.
"""

import asyncio
import json
import sys

from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault


async def main(url: str, key: str, bindings: list[str]) -> None:
    async with await open_store(url, Vault([bytes.fromhex(key)])) as store:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def spend(binding: str) -> str | None:
            is_spent = await store._database.write(store.approvals.spend(binding, 1_000.0))
            return binding if is_spent else None

        won = await asyncio.gather(*map(spend, bindings))
        print(json.dumps([binding for binding in won if binding]), flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
