"""Calls through the stages of governed calls, with fake servers and a fake clock."""

from typing import Any

from tests.calls.world import World

from mcp_junction.calls.pipeline import GovernedStages
from mcp_junction.calls.stages.breaker import CircuitBreaker
from mcp_junction.calls.stages.retry import RetryCalls
from mcp_junction.governance.failures import Circuits
from mcp_junction.governance.tool_facts import ToolFactsCache, ToolSettings
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.resilience.breaker import BreakerSettings
from mcp_junction.resilience.retry import RetryPolicy
from mcp_junction.store.store import Store
from mcp_junction.telemetry.bus import Bus
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.testing.link import FakeUpstream


def allow_repeating(server: str = "one", tool: str = "echo") -> ToolSetting:
    """The operator's word that a tool may be called again."""
    return ToolSetting(f"id-{server}", tool, idempotent=True)


class GovernedWorld(World):
    """A World whose calls are retried and pass circuits."""

    def __init__(
        self,
        *upstreams: FakeUpstream,
        settings: tuple[ToolSetting, ...] = (),
        policy: RetryPolicy | None = None,
        circuits: Circuits | None = None,
        chance: float = 0.5,
        **stages: Any,
    ) -> None:
        clock, extra = FakeClock(), stages.pop("extra", ())
        self.facts = ToolFactsCache(ToolSettings(settings))
        breaker = settle = None
        if circuits is not None:
            breaker = CircuitBreaker(circuits, clock.now, is_settled=True)
            settle = breaker.settle
        note_first = stages.pop("note_first", None)
        policy = policy or RetryPolicy()
        retry = RetryCalls(policy, self.facts, clock, lambda: chance, settle, note_first)
        stages = {"retry": retry, "breaker": breaker} | stages | self.more_stages()
        super().__init__(*upstreams, governed=GovernedStages(**stages), clock=clock, extra=extra)

    def more_stages(self) -> dict[str, Any]:
        """Further stages, which need what this world has."""
        return {}


def make_circuits(store: Store, bus: Bus, **settings: Any) -> Circuits:
    return Circuits(BreakerSettings(**settings), store.circuits, bus, now=lambda: 1_000.0)
