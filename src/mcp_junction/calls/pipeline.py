"""The pipeline: the stages of a call in order, composed once for each method.

This is the one place where their order is written. ``record`` is outermost, so that unknown names
are recorded too; ``forward`` stands next to the wire and may run more than once for a call. A
stage that does not apply to a method is not on its path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Final, NamedTuple, Protocol

from mcp_junction.calls.attempt import LinkChoice
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CALL_TOOL, CallSink
from mcp_junction.calls.methods import ALL_METHODS, OF_TASKS, SUBSCRIBING
from mcp_junction.calls.stages.authorize import authorize
from mcp_junction.calls.stages.forward import Forward
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.calls.stages.resolve import resolve
from mcp_junction.calls.stages.subscribe import Register, Subscribe
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream.outcome import Outcome

_NOT_OF_TASKS = frozenset(ALL_METHODS) - OF_TASKS
_ANSWERED_ONCE = frozenset(ALL_METHODS) - SUBSCRIBING


class Stage(Protocol):
    """One policy around the rest of the path."""

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """A stage that only checks is a plain function that returns ``following(call)``."""
        ...


class PlacedStage(NamedTuple):
    """A stage, its name, and the methods that it applies to."""

    name: str
    stage: Stage
    methods: Collection[str] = ALL_METHODS


class ExtraStage(NamedTuple):
    """A stage to insert right after the one that is named."""

    after: str
    stage: Stage


class GovernedStages(NamedTuple):
    """The stages that only governed calls pass; what is None is left out."""

    authorize: Stage | None = None
    """In place of the check of roles."""
    limit: Stage | None = None
    validate: Stage | None = None
    idempotency: Stage | None = None
    fallback: Stage | None = None
    admit: Stage | None = None
    retry: Stage | None = None
    recheck: Stage | None = None
    breaker: Stage | None = None


UNGOVERNED: Final = GovernedStages()


class PipelineParts(NamedTuple):
    """What the stages are made of."""

    clock: Clock
    deadlines: Deadlines
    links: LinkChoice
    resume: Stage
    resolve_task: Stage
    own: Stage
    register: Register
    sinks: Sequence[CallSink] = ()
    intend: Stage | None = None
    """Writes to the audit, in strict mode, what is about to be sent."""
    extra: Sequence[ExtraStage] = ()
    governed: GovernedStages = UNGOVERNED


def stages_of(parts: PipelineParts) -> list[PlacedStage]:
    """The stages before ``forward``, in order."""
    governed = parts.governed
    listed: list[tuple[str, Stage | None, Collection[str]]] = [
        ("record", RecordCall(parts.clock, parts.deadlines, parts.sinks), ALL_METHODS),
        ("resolve", resolve, _NOT_OF_TASKS),
        ("resolve_task", parts.resolve_task, OF_TASKS),
        ("authorize", governed.authorize or authorize, ALL_METHODS),
        ("own", parts.own, (CALL_TOOL,)),
        ("resume", parts.resume, _ANSWERED_ONCE),
        ("limit", governed.limit, ALL_METHODS),
        ("validate", governed.validate, (CALL_TOOL,)),
        ("idempotency", governed.idempotency, (CALL_TOOL,)),
        ("fallback", governed.fallback, (CALL_TOOL,)),
        ("admit", governed.admit, (CALL_TOOL,)),
        ("subscribe", Subscribe(parts.register), SUBSCRIBING),
        ("retry", governed.retry, _ANSWERED_ONCE),
        # for each attempt:
        ("recheck", governed.recheck, ALL_METHODS),
        ("breaker", governed.breaker, ALL_METHODS),
        ("intent", parts.intend, ALL_METHODS),
    ]
    stages = [
        PlacedStage(name, stage, methods) for name, stage, methods in listed if stage is not None
    ]
    for after, stage in parts.extra:
        place = next(i for i, placed in enumerate(stages) if placed.name == after)
        stages.insert(place + 1, PlacedStage("extra", stage))
    return stages


def build_handlers(parts: PipelineParts) -> Mapping[str, Handler]:
    """Compose the path of each method."""
    stages = stages_of(parts)
    forward = Forward(parts.clock, parts.deadlines, parts.links).__call__
    return {
        method: compose((placed.stage for placed in stages if method in placed.methods), forward)
        for method in ALL_METHODS
    }


def compose(stages: Iterable[Stage], last: Handler) -> Handler:
    """One handler from stages, the first of them outermost."""
    handler = last
    for stage in reversed(list(stages)):
        handler = _around(stage, handler)
    return handler


def _around(stage: Stage, following: Handler) -> Handler:
    """A closure: on the path of every call it costs a third of what ``partial`` does."""
    around = stage if isinstance(stage, FunctionType | MethodType) else stage.__call__

    def handler(call: Call) -> Awaitable[Outcome]:
        return around(call, following)

    return handler
