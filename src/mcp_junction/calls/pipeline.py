"""The pipeline: the stages of a call, composed once.

This is the one place where their order is written. ``record`` is outermost, so that unknown names
are recorded too; ``forward`` stands next to the wire. A call that was found when it was accepted
goes straight, past the stages that find. Whatever else may stop a call is on both paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from types import FunctionType
from typing import NamedTuple, Protocol

from mcp_junction.calls.call import Call
from mcp_junction.calls.crossing import Crossing
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CallSink
from mcp_junction.calls.snapshot import Handler
from mcp_junction.calls.stages.authorize import authorize
from mcp_junction.calls.stages.forward import Forward
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.calls.stages.resolve import resolve, still_wanted
from mcp_junction.calls.stages.subscribe import Register, Subscribe
from mcp_junction.calls.stages.task import ResolveTask
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream.outcome import Outcome


class Stage(Protocol):
    """One policy around the rest of the path."""

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """One that only looks hands on what ``following`` returns, and adds no frame of its own."""
        ...


class Paths(NamedTuple):
    """The two ways down."""

    handle: Handler
    """For every call."""
    straight: Handler
    """For a tool or a prompt whose route is known."""


def compose(stages: Sequence[Stage], last: Handler) -> Handler:
    """One handler from stages, the first of them outermost."""
    handler = last
    for stage in reversed(stages):
        handler = _around(stage, handler)
    return handler


def _around(stage: Stage, following: Handler) -> Handler:
    """On the way of every call: a function costs a third of what ``partial`` does."""
    around = stage if isinstance(stage, FunctionType) else stage.__call__

    def handler(call: Call) -> Awaitable[Outcome]:
        return around(call, following)

    return handler


def pipeline(
    clock: Clock,
    deadlines: Deadlines,
    register: Register,
    crossing: Crossing,
    sinks: Sequence[CallSink] = (),
    inner: Sequence[Stage] = (),
) -> Paths:
    """The path of a call. In stdio mode, where the caller owns everything, there are no sinks
    and no ``inner`` stages: no audit."""
    record = RecordCall(clock, sinks)
    finding: list[Stage] = [ResolveTask(crossing.seal), resolve, authorize, Subscribe(register)]
    forward = Forward(deadlines, crossing).__call__
    # Nothing is sent for a call that was ended before it began; nor may ``inner`` stages see it.
    wanted: list[Stage] = [still_wanted] if inner else []
    return Paths(
        compose([record, *finding, *inner], forward),
        compose([record, *wanted, authorize, *inner], forward),
    )
