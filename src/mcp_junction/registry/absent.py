"""AbsentServers: servers of an earlier config file that the current file does not name.

Their rows stay in the store as they were, with pins, decisions and classification, so that nothing
they offered passes as new when the file names them again. Whether a server is absent is not stored:
it depends on the file that this process was given, and must change nothing for another one.
"""

from __future__ import annotations

import asyncio

import msgspec

from mcp_junction.errors import AlreadyExists, FileOwned, NotFound
from mcp_junction.policy.principal import Principal
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.definitions import FILE
from mcp_junction.registry.rules import check_version
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream.state import ServerState


class AbsentServers:
    """Lists and removes servers that are in the store, but not in the current config file."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self.lock = asyncio.Lock()
        """Held while servers become absent, come back or are removed."""

    async def all(self) -> list[ServerRecord]:
        """Every absent server, by name."""
        found = await self._context.store.servers.all()
        return [_without_status(record) for record in found if self._is_absent(record)]

    async def get(self, ref: str) -> ServerRecord:
        """One by id or name. Raises NotFound."""
        found = await self._context.store.servers.find(ref)
        if found is None or not self._is_absent(found):
            raise NotFound(f"there is no server {ref!r}")
        return _without_status(found)

    async def remove(self, ref: str, actor: Principal, if_match: int | None = None) -> None:
        """Remove one for good, pins and all. Raises NotFound, FileOwned, VersionConflict."""
        async with self.lock:
            if (member := self._context.members.find(ref)) is not None:
                raise FileOwned(member.name)  # it has come back while we waited
            record = await self.get(ref)
            check_version(record, if_match)
            detail = {"absent": True}
            async with self._context.act(actor, "server.remove", record, detail=detail):
                await self._context.store.servers.remove(record.id)
        self._context.tell("server.removed", record)

    async def explain_taken_name(self, name: str) -> AlreadyExists:
        """Make the error for a name that is taken: it says by which kind of server."""
        try:
            await self.get(name)
        except NotFound:
            return AlreadyExists(f"there is a server {name!r} already")
        return AlreadyExists(
            f"the name {name!r} belongs to a server that is not in the current config file; its"
            " pins are kept. Choose another name, or remove it first:"
            f" mcp-junction servers remove {name}"
        )

    def _is_absent(self, record: ServerRecord) -> bool:
        return record.origin == FILE and self._context.members.find(record.id) is None


def _without_status(record: ServerRecord) -> ServerRecord:
    """Return a record as disconnected, without the status of its last connection."""
    return msgspec.structs.replace(
        record,
        status=ServerState.DISCONNECTED.value,
        reachable=None,
        authenticated=None,
        healthy=None,
        response_time_ms=None,
        error_rate=None,
        error_message=None,
        connected_at=None,
    )
