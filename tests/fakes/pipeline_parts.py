"""TestParts: the pipeline of a call, with nothing around it."""

from collections.abc import Sequence
from typing import Final

from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CallSink
from mcp_junction.calls.pipeline import UNGOVERNED, ExtraStage, GovernedStages, PipelineParts
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.stages.own import OwnTools
from mcp_junction.calls.stages.subscribe import Subscriptions
from mcp_junction.calls.tool_search import ToolSearch
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.eras.links import EraLinks
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import Resume
from mcp_junction.eras.tickets import ResolveTask, Seal
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import TaskScope

PARKED_SECONDS: Final = 600.0


class TestParts:
    """The parts of a pipeline, each of them at hand."""

    __test__ = False

    def __init__(
        self,
        clock: Clock,
        sinks: Sequence[CallSink] = (),
        extra: Sequence[ExtraStage] = (),
        catalog: Catalog | None = None,
        strict_audit: CallAudit | None = None,
        governed: GovernedStages = UNGOVERNED,
    ) -> None:
        record = strict_audit.record if strict_audit is not None else None
        self.deadlines = Deadlines(clock)
        self.register = Subscriptions()
        self.parked_calls = ParkedCalls(clock, Seal(), PARKED_SECONDS, 1000, record)
        self.resume = Resume(self.parked_calls, self.deadlines)
        self.links = EraLinks(self.resume, self.deadlines, TaskScope("suspended calls"))
        self.search = ToolSearch(TaskScope("search"), catalog or Catalog())
        self.parts = PipelineParts(
            clock,
            self.deadlines,
            self.links,
            self.resume,
            ResolveTask(self.parked_calls.seal),
            OwnTools(self.search),
            self.register,
            sinks if record is None else (record, *sinks),
            strict_audit.intend if strict_audit is not None else None,
            extra,
            governed,
        )
