"""Keys for tests: made and revoked as another process would, from sync and async code alike."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import Role
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.store import default_url, open_store
from mcp_junction.vault.vault import Vault


class Keys:
    """The keys of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._url = default_url(data_dir)
        self._vault = Vault.from_environment({}, data_dir)  # the one that the program has there

    def create(self, role: Role, agent: str) -> tuple[KeyRecord, str]:
        return self._do(lambda ring: ring.create(role, agent, "test"))

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
