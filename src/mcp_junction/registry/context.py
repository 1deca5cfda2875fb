"""RegistryContext: what the registry's parts share: the members, the store, the audit, the bus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp_junction.audit.log import AuditLog
from mcp_junction.config.settings import Settings
from mcp_junction.errors import NotFound
from mcp_junction.policy.principal import Principal
from mcp_junction.registry.member import Member
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.store.records import ServerRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.telemetry.bus import Bus


class Members:
    """Every member, by id and by name, in the order in which they came."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_name: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, server_id: str) -> bool:
        return server_id in self._by_id

    def find(self, ref: str) -> Member | None:
        """A member by id, or else by name."""
        return self._by_id.get(ref) or self._by_name.get(ref)

    def get(self, ref: str) -> Member:
        """Raises NotFound."""
        found = self.find(ref)
        if found is None:
            raise NotFound(f"there is no server {ref!r}")
        return found

    def named(self, name: str) -> Member | None:
        return self._by_name.get(name)

    def add(self, member: Member) -> None:
        self._by_id[member.id] = self._by_name[member.name] = member

    def remove(self, member: Member) -> None:
        del self._by_id[member.id], self._by_name[member.name]

    def replace(self, member: Member, record: ServerRecord) -> None:
        """A member has another record, and with it maybe another name."""
        del self._by_name[member.name]
        member.record = record
        self._by_name[record.name] = member


class RegistryContext:
    """What every part of the registry needs."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        audit: AuditLog,
        bus: Bus,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.audit = audit
        self.bus = bus
        self.clock = clock or SystemClock()
        self.members = Members()
        self.supervision = Supervision()
        """Tells of all long-lived tasks of the service."""
        self.supervision.include(audit.supervision, bus.supervision)
        self.tasks = TaskScope("registry", self.supervision)
        self.is_open = False
        """Whether changes of servers are recorded: not those of the end of the service."""

    def act(
        self, actor: Principal, action: str, record: ServerRecord, **more: Any
    ) -> AbstractAsyncContextManager[None]:
        """Around a change of a server: in the audit before it begins, and how it ended."""
        given = {"server_id": record.id, "target": record.name, **more}
        return self.audit.act(actor.id, actor.role.value, action, **given)

    def tell(self, kind: str, record: ServerRecord, **more: Any) -> None:
        """Say on the bus what has happened to a server."""
        self.bus.publish(kind, {"server_id": record.id, "name": record.name, **more}, record.id)
