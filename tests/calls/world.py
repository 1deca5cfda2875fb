"""One caller, some servers, and the pipeline between them, in this process."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw
from tests.fakes.pipeline_parts import TestParts

from mcp_junction.calls.call import Call, Snapshot, tool_call
from mcp_junction.calls.pipeline import (
    UNGOVERNED,
    ExtraStage,
    GovernedStages,
    build_handlers,
)
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.listener.replies import ResultWriter
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import frames, names
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock, MemorySink
from mcp_junction.testing.link import FakeUpstream, catalog_of
from mcp_junction.upstream.outcome import Outcome

BOUND = 30.0


class World:
    """Calls made here end by themselves, by what the test does, or by the fake clock."""

    def __init__(
        self,
        *upstreams: FakeUpstream,
        extra: Sequence[ExtraStage] = (),
        strict_audit: CallAudit | None = None,
        governed: GovernedStages = UNGOVERNED,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.sink = MemorySink()
        self.sent: list[bytes] = []
        self.session = Session(LOCAL_OWNER, names.STDIO, self.sent.append)
        self.tasks = TaskScope("calls")
        composed = TestParts(
            self.clock, [self.sink], extra, strict_audit=strict_audit, governed=governed
        )
        self.deadlines, self.register = composed.deadlines, composed.register
        self.parked_calls, self.links = composed.parked_calls, composed.links
        self.search, self.parts = composed.search, composed.parts
        self.handlers = build_handlers(self.parts)
        self.snapshot = Snapshot(catalog_of(*upstreams), self.handlers)

    def call(self, name: str = "one:echo", **members: Any) -> Call:
        params = {"name": name, "arguments": {}, **members}
        return self.call_raw(name, json.dumps(params).encode())

    def call_raw(self, name: str, params: bytes) -> Call:
        return tool_call(self.session, self.snapshot, name, frames.members(params))

    def start(self, call: Call) -> Any:
        return self.tasks.spawn(self.snapshot.handle(call))

    async def run(self, call: Call) -> Outcome:
        return await self.snapshot.handle(call)

    def told(self) -> list[dict[str, Any]]:
        """What the client was sent since the last time."""
        frames_sent = [json.loads(line) for line in self.sent]
        self.sent.clear()
        return frames_sent


def body(outcome: Outcome) -> Any:
    return json.loads(bytes(outcome.payload))


def seen(outcome: Outcome, method: str = "tools/call") -> Any:
    """A result as a stateless client is sent it."""
    return json.loads(ResultWriter("test", "0").result(method, b"1", outcome))["result"]


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())
