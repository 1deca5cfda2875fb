"""Keys for tests: made and revoked as another process would, from sync and async code alike."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.grants import ANY, KINDS, Grant
from mcp_junction.policy.principal import Role
from mcp_junction.policy.tokens import TokenMode
from mcp_junction.store.grants import AgentRecord
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.store import Store, default_url, open_store
from mcp_junction.vault.vault import Vault


async def grant_all(store: Store, agent: str, pattern: str = "*") -> None:
    """Let an agent use whatever a pattern matches, on all servers, without tokens."""
    grant = Grant(
        f"{agent}-{pattern}",
        agent,
        ANY,
        pattern,
        KINDS,
        token_mode=TokenMode.NONE,
        granted_at=time.time(),
        granted_by="test",
    )
    await store.policy.grant(grant, AgentRecord(agent), lambda _: None)


class Keys:
    """The keys of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._url = default_url(data_dir)
        self._vault = Vault.from_environment({}, data_dir)  # the one that the program has there

    def create(self, role: Role, agent: str, *, grant: str | None = "*") -> tuple[KeyRecord, str]:
        """Make a key; that of an agent may call everything, or what ``grant`` matches."""

        async def make(ring: KeyRing) -> tuple[KeyRecord, str]:
            if role is Role.AGENT and grant is not None:
                await grant_all(ring._store, agent, grant)
            return await ring.create(role, agent, "test")

        return self._do(make)

    def revoke(self, key_id: str) -> KeyRecord:
        return self._do(lambda ring: ring.revoke(key_id, "test"))

    def _do(self, change: Callable[[KeyRing], Awaitable[Any]]) -> Any:
        results: list[Any] = []

        async def main() -> None:
            async with await open_store(self._url, self._vault) as store:
                results.append(await change(await KeyRing.open(store)))

        thread = threading.Thread(target=lambda: asyncio.run(main()))  # a loop may be running here
        thread.start()
        thread.join()
        return results[0]
