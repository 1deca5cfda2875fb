"""A whole Junction in the test's own process whose calls are governed: retry, circuits and keys."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.faults.inside import BOUND, Client, Inside
from tests.plugin_faults import Rig, python

from mcp_junction.app import Junction
from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.config.load import Config, load
from mcp_junction.governance.governance import Governance, open_governance
from mcp_junction.governance.tool_facts import ToolSettings
from mcp_junction.listener.acceptance import accept
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.store.store import Store, default_url, open_store
from mcp_junction.telemetry.bus import Bus
from mcp_junction.vault.vault import Vault


class Governed(Inside):
    """A governed Junction, and what governs it."""

    def __init__(self, junction: Junction, governance: Governance, store: Store) -> None:
        super().__init__(junction)
        self.governance = governance
        self.store = store
        self.dispatcher = Dispatcher(junction, self.calls, accept)


def share_ledger(rig: Rig, key: str, other: str, **entry: Any) -> None:
    """Add a ledger server that writes to the file of another: what ran at either is one history."""
    rig.add(key, **entry)
    argv = python("ledger", "--file", str(rig.file(other)))
    rig.entries[key]["command"], rig.entries[key]["args"] = argv[0], argv[1:]


def _identify(config: Config) -> Config:
    """Give each server the id that a store would."""
    servers = tuple(one._replace(id=f"id-{one.key}") for one in config.servers)
    return config._replace(servers=servers)


@asynccontextmanager
async def governed(
    rig: Rig, *settings: ToolSetting, store_url: str | None = None
) -> AsyncIterator[Governed]:
    """The rig's config, served in this process; its servers are up."""
    vault = Vault([bytes(range(32))])
    clock = SystemClock()
    config = _identify(load(str(rig.config()), {}, {"restart": True}))
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        store = await enter(await open_store(store_url or default_url(rig.folder / "data"), vault))
        points = CheckpointDirectory(rig.folder / "data")
        audit = await enter(
            AuditLog(store.audit, vault.derive_keys("audit")[0], vault.key_id, points)
        )
        bus = await enter(Bus(store.events))
        governance = await open_governance(
            config.settings, store, audit, bus, ToolSettings(settings), clock
        )
        junction = await enter(Junction(config, governance=governance, supervised=True))
        governance.start(junction.tasks, clock)
        within = Governed(junction, governance, store)
        within.client()
        await junction.wait_until_settled()
        try:
            yield within
        finally:
            await within.calls.close()


class AnsweringClient(Client):
    """A session whose answers are awaited by their ids."""

    def __init__(self, within: Governed) -> None:
        self.waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        super().__init__(within)

    def take(self, line: bytes) -> None:
        """Take a frame that the session is sent."""
        frame = json.loads(line)
        waiting = self.waiting.pop(frame.get("id"), None) if "method" not in frame else None
        if waiting is not None:
            waiting.set_result(frame)


class Caller:
    """Calls of a client, each with its answer."""

    def __init__(self, within: Governed) -> None:
        self.client = AnsweringClient(within)
        self._ids = itertools.count(1)

    async def call(self, tool: str, key: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and wait for the answer."""
        frame_id = f"c{next(self._ids)}"
        answer = self.client.waiting[frame_id] = asyncio.get_running_loop().create_future()
        meta = {} if key is None else {"_meta": {"junction/idempotency-key": key}}
        self.client.send("tools/call", frame_id, {"name": tool, "arguments": arguments, **meta})
        return await asyncio.wait_for(answer, BOUND)
