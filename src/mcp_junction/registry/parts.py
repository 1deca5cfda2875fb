"""RegistryParts: the parts of the registry that listen to server events, put together once."""

from __future__ import annotations

from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.server_lifecycle import ServerLifecycle
from mcp_junction.registry.skills import RegistrySkills
from mcp_junction.registry.tools import RegistryTools
from mcp_junction.upstream.events import ServerSink


class RegistryParts:
    """The parts of the registry that listen to server events. Made first, passed to Junction."""

    def __init__(self, context: RegistryContext) -> None:
        self.context = context
        self.lifecycle = ServerLifecycle(context)
        self.skills = RegistrySkills(context)
        self.tools = RegistryTools(context, self.skills.classifier.wake)

    @property
    def server_sinks(self) -> tuple[ServerSink, ...]:
        return self.lifecycle.follow, self.tools.follow, self.skills.follow
