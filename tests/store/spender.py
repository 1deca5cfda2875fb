"""A process that spends tokens of a store, all at once, and prints those that it got.

Run as ``spender.py URL KEY TOKENS…`` with the vault's key as hex; it begins with a line on stdin.
"""

import asyncio
import json
import sys

from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault


async def main(url: str, key: str, tokens: list[str]) -> None:
    async with await open_store(url, Vault([bytes.fromhex(key)])) as store:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def spend(token: str) -> str | None:
            is_spent = await store._database.write(store.policy.tokens.spend(token, 1_000.0))
            return token if is_spent else None

        won = await asyncio.gather(*map(spend, tokens))
        print(json.dumps([token for token in won if token]), flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
