"""RegistryContext: what the registry's parts share: members, store, audit, bus and clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from mcp_junction.audit.log import AuditLog
from mcp_junction.config.settings import Settings
from mcp_junction.governance.tool_facts import ToolSettings
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.known_tools import KnownTools, ToolRules
from mcp_junction.registry.member import Members
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.store.records import ServerRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.telemetry.bus import Bus

MOST_NAMES: Final = 200
"""The most names of tools in one event."""


class RegistryContext:
    """What every part of the registry needs."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        audit: AuditLog,
        bus: Bus,
    ) -> None:
        self.settings = settings
        self.store = store
        self.audit = audit
        self.bus = bus
        self.clock: Clock = SystemClock()
        self.members = Members()
        self.tool_settings = ToolSettings()
        self.tool_rules = ToolRules(self.tool_settings, strict_schemas=settings.strict_schemas)
        self.known_tools = KnownTools(self.members, self.tool_rules)
        self.supervision = Supervision()
        """Tells of all long-lived tasks of the service."""
        self.supervision.include(audit.supervision, bus.supervision)
        self.tasks = TaskScope("registry", self.supervision)
        self.is_open = False
        """Whether changes of servers are recorded: not those of the end of the service."""
        self.on_classified: Callable[[list[Pair]], None] = lambda _: None
        """Told which tools were given other skills."""

    def forget_server(self, server_id: str) -> None:
        """Forget what is known of the tools of a server that was removed for good."""
        self.tool_settings.forget_server(server_id)
        self.known_tools.forget_declared(server_id)

    def audit_act(
        self, actor: Principal, action: str, record: ServerRecord, **more: Any
    ) -> AbstractAsyncContextManager[None]:
        """Enter it around a change of a server: the audit has the beginning and the end."""
        given = {"server_id": record.id, "target": record.name, **more}
        return self.audit.act(actor.id, actor.role.value, action, **given)

    def publish_tools(self, record: ServerRecord, names: Sequence[str], **more: Any) -> None:
        """Announce on the bus the new tools of a server, not too many in one event."""
        for start in range(0, len(names), MOST_NAMES):
            some = names[start : start + MOST_NAMES]
            self.publish("tool.registered", record, tools=some, **more)

    def publish(self, kind: str, record: ServerRecord, **more: Any) -> None:
        """Announce on the bus what has happened to a server."""
        self.bus.publish(kind, {"server_id": record.id, "name": record.name, **more}, record.id)
