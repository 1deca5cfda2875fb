"""Circuits: the circuits of this process at run time; stores and announces their changes.

The machine is ``resilience/breaker.py``. Calls go on by the states in memory when the store fails:
a change is then stored as soon as it can be. Each process has circuits of its own; what one has
stored the others see at their next start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from mcp_junction.errors import StoreError
from mcp_junction.resilience.breaker import (
    CLOSED,
    OPEN,
    WHOLE_SERVER,
    BreakerRow,
    BreakerSettings,
)
from mcp_junction.resilience.breakers import Breakers
from mcp_junction.store.resilience import CircuitTable
from mcp_junction.telemetry.bus import Bus
from mcp_junction.upstream.events import ServerChange, ServerChanged

log = logging.getLogger("mcp_junction.governance")

OPENED: Final = "circuit.opened"
CLOSED_EVENT: Final = "circuit.closed"
_RETRY: Final = 1.0
_KINDS: Final = {OPEN: OPENED, CLOSED: CLOSED_EVENT}


class Circuits:
    """Breakers that survive a restart."""

    def __init__(
        self,
        settings: BreakerSettings,
        table: CircuitTable,
        bus: Bus,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.breakers = Breakers(settings)
        self._table = table
        self._bus = bus
        self._now = now
        self._unstored: dict[tuple[str, str], BreakerRow] = {}
        self._forgotten: set[str] = set()
        self._wake = asyncio.Event()
        self._server_names: dict[str, str] = {}

    async def restore(self) -> None:
        """Take over the stored states. Without the store all circuits begin closed."""
        try:
            self.breakers.restore(await self._table.all(), self._now())
        except StoreError as error:
            log.warning("the states of circuits cannot be read, and all begin closed: %s", error)

    # -- changes

    def announce_changes(self) -> None:
        """Publish the circuits that changed, and have them stored soon."""
        for row in self.breakers.take_changes():
            self._unstored[row.server_id, row.tool_name] = row
            kind = _KINDS.get(row.state)
            if kind is not None:
                log.warning("circuit %s is %s", row.circuit_key, row.state.value)
                self._bus.publish(kind, self._describe(row), row.server_id)
        self._store_soon()

    def reset(self, server_id: str, tool_name: str = WHOLE_SERVER) -> list[BreakerRow]:
        """Close the circuit of a tool, or with ``*`` all of a server; return those it has."""
        tool = None if tool_name == WHOLE_SERVER else tool_name
        found = self.breakers.rows(server_id, tool)
        self.breakers.reset(server_id, tool)
        self.announce_changes()
        return self.breakers.rows(server_id, tool) if found else []

    def follow(self, event: ServerChanged) -> None:
        """Reset the circuits of a server whose connection changes, and drop those of one removed.

        A ServerSink.
        """
        definition = event.server.definition
        if event.change is ServerChange.REPLACED:
            self.reset(definition.id)
        elif event.change is ServerChange.REMOVED:
            self.breakers.forget(definition.id)
            self._unstored = {k: row for k, row in self._unstored.items() if k[0] != definition.id}
            self._forgotten.add(definition.id)
            self._server_names.pop(definition.id, None)
            self._store_soon()
        elif event.change in (ServerChange.ADDED, ServerChange.RENAMED):
            self._server_names[definition.id] = definition.key

    # -- storing

    def _store_soon(self) -> None:
        if self._unstored or self._forgotten:
            self._wake.set()

    async def run(self) -> None:
        """Store changes as they come, and at the end. A supervised task."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if not await self._store():
                    await asyncio.sleep(_RETRY)
                    self._wake.set()
        finally:
            await self._store()

    async def _store(self) -> bool:
        """Store what has changed; return whether that was possible, else it is kept."""
        rows, self._unstored = self._unstored, {}
        forgotten, self._forgotten = self._forgotten, set()
        try:
            for server_id in sorted(forgotten):
                await self._table.forget(server_id)
            if rows:
                await self._table.store(list(rows.values()))
        except (StoreError, asyncio.CancelledError) as error:
            self._unstored = {**rows, **self._unstored}  # what came since is newer
            self._forgotten |= forgotten
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning("states of circuits cannot be stored now: %s", error)
            return False
        return True

    def _describe(self, row: BreakerRow) -> dict[str, Any]:
        return {
            "server_id": row.server_id,
            "server_name": self._server_names.get(row.server_id, ""),
            "tool_name": row.tool_name,
            "circuit_key": row.circuit_key,
            "state": row.state.value,
            "failure_count": row.failure_count,
            "opened_at": row.opened_at,
            "retry_at": row.retry_at,
        }
