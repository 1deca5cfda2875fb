"""RegistryParts: the parts of the registry that hear of servers and calls, put together once."""

from __future__ import annotations

from mcp_junction.calls.events import CallSink
from mcp_junction.calls.metrics import CallMetrics
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.server_lifecycle import ServerLifecycle
from mcp_junction.registry.skills import RegistrySkills
from mcp_junction.registry.tools import RegistryTools
from mcp_junction.telemetry.metrics_history import MetricsHistory
from mcp_junction.upstream.events import ServerSink


class RegistryParts:
    """The parts of the registry that hear of servers and calls. Made first, passed to Junction."""

    def __init__(self, context: RegistryContext) -> None:
        self.context = context
        self.lifecycle = ServerLifecycle(context)
        self.skills = RegistrySkills(context)
        self.tools = RegistryTools(context, self.skills.classifier.wake)
        self.call_metrics = CallMetrics()
        self.metrics_history = MetricsHistory(
            context.store.call_metrics,
            context.audit.writer,
            self.call_metrics.take_minute,
            lambda: self.call_metrics.tallies.current,
            context.clock,
            days=context.settings.audit_retention_days,
        )

    @property
    def call_sinks(self) -> tuple[CallSink, ...]:
        return self.lifecycle.observe_call, self.call_metrics.observe

    @property
    def server_sinks(self) -> tuple[ServerSink, ...]:
        return self.lifecycle.follow, self.tools.follow, self.skills.follow
