"""Registry: the servers at run time, registered or the config file's. It alone changes which there are.

Every change is one row in the audit, one event on the bus and, where it concerns the connection,
one row of history. A change of one server waits for the one before it; servers do not wait for each
other. What is read (``find``, ``all``, ``state``) is read from memory, live.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from mcp_junction.app import Junction
from mcp_junction.audit.log import AuditLog
from mcp_junction.bus.bus import Bus
from mcp_junction.config.registration import Registration
from mcp_junction.errors import AlreadyExists, FileOwned, NotFound
from mcp_junction.policy.principal import Principal
from mcp_junction.registry.chronicle import Chronicle
from mcp_junction.registry.definitions import FILE, definition_for, record_of
from mcp_junction.registry.member import Member
from mcp_junction.store.records import HistoryRecord, ServerRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.state import ServerState

DRAIN: Final = 30.0
"""How long calls under way are waited for when their server is disconnected."""


class Registry:
    """Every server. Use as ``async with Registry(junction, store, audit, bus) as registry``."""

    def __init__(self, junction: Junction, store: Store, audit: AuditLog, bus: Bus) -> None:
        self._junction = junction
        self._store = store
        self._audit = audit
        self._bus = bus
        self._by_id: dict[str, Member] = {}
        self._by_name: dict[str, Member] = {}
        self._tasks = TaskScope("registry")
        self._began = time.time()

    async def __aenter__(self) -> Self:
        self._chronicle = Chronicle(self._store, self._tasks)
        self._junction.greet()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._chronicle.flush()
        await self._tasks.close()

    # -- reading

    def find(self, ref: str) -> ServerRecord:
        """A server by id or name, as it stands now. Raises NotFound."""
        return self._member(ref).record

    def all(self, status: str | None = None) -> list[ServerRecord]:
        """Every server, by name."""
        found = [self.find(name) for name in sorted(self._by_name)]
        return [record for record in found if status is None or record.status == status]

    async def history(
        self, ref: str, limit: int = 100, before: int | None = None
    ) -> list[HistoryRecord]:
        """What happened to a server's connection, newest first. Raises NotFound."""
        await self._chronicle.flush()
        return await self._store.history.of(self._member(ref).id, limit=limit, before=before)

    # -- changing

    async def register(
        self, made: Registration, actor: Principal, *, auto_connect: bool = True
    ) -> ServerRecord:
        """A new server; the connection is made in the background. Raises AlreadyExists."""
        if made.name in self._by_name:
            raise AlreadyExists(f"there is a server {made.name!r} already")
        wanted = auto_connect and made.enabled
        status = ServerState.CONNECTING if wanted else ServerState.DISCONNECTED
        record = msgspec.structs.replace(record_of(made), status=status.value)
        async with self._act(actor, "server.register", record):
            record = await self._store.servers.add(record)
        definition = definition_for(record, self._junction.environ, self._junction.settings)
        upstream = self._junction.add_server(definition, start=wanted)
        self._take(Member(record, upstream))
        self._tell("server.registered", record)
        return self.find(record.id)

    async def connect(self, ref: str, actor: Principal) -> tuple[str, str]:
        """Connect a server, and wait for how that ends. Raises NotFound."""
        member = self._member(ref)
        async with member.lock, self._act(actor, "server.connect", member.record):
            upstream = member.upstream
            if upstream.link is not None:
                return upstream.state.value, "it is connected already"
            self._junction.start_server(member.name)
            await asyncio.wait_for(upstream.settled.wait(), upstream.terms.start_timeout + 1)
            words = upstream.error.message if upstream.error is not None else "connected"
            return upstream.state.value, words

    async def disconnect(
        self, ref: str, actor: Principal, *, force: bool = False
    ) -> tuple[str, int]:
        """Disconnect a server once its calls are done; how many there were. Raises NotFound."""
        member = self._member(ref)
        async with member.lock, self._act(actor, "server.disconnect", member.record):
            pending = await self._junction.stop_server(member.name, 0.0 if force else DRAIN)
            return member.upstream.state.value, pending

    async def remove(self, ref: str, actor: Principal) -> None:
        """Remove a server. Its calls under way may end. Raises NotFound, FileOwned."""
        member = self._member(ref)
        if member.record.origin == FILE:
            raise FileOwned(member.name)
        async with self._act(actor, "server.remove", member.record):
            await self._store.servers.remove(member.id)
        del self._by_id[member.id], self._by_name[member.name]
        self._tasks.spawn(self._junction.remove_server(member.name, DRAIN))
        self._tell("server.removed", member.record)

    # -- parts

    def _member(self, ref: str) -> Member:
        found = self._by_id.get(ref) or self._by_name.get(ref)
        if found is None:
            raise NotFound(f"there is no server {ref!r}")
        return found

    def _take(self, member: Member) -> None:
        self._by_id[member.id] = self._by_name[member.name] = member

    def _act(
        self, actor: Principal, action: str, record: ServerRecord, **more: Any
    ) -> AbstractAsyncContextManager[None]:
        given = {"server_id": record.id, "target": record.name, **more}
        return self._audit.act(actor.id, actor.role.value, action, **given)

    def _tell(self, kind: str, record: ServerRecord, **more: Any) -> None:
        data = {"server_id": record.id, "name": record.name, **more}
        self._bus.publish(kind, data, record.id)
