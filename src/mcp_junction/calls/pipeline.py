"""The pipeline: the stages of a call in order, composed once for each method.

This is the one place where their order is written. ``record`` is outermost, so that unknown names
are recorded too; ``forward`` stands next to the wire and may run more than once for a call. A
stage that does not apply to a method is not on its path; one that passes every plain call on as it
is (``Call.is_plain``) is not on the path of those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Final, NamedTuple, Protocol, runtime_checkable

from mcp_junction.calls.attempt import LinkChoice
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CALL_TOOL, CallSink
from mcp_junction.calls.methods import ALL_METHODS, OF_TASKS, SUBSCRIBING
from mcp_junction.calls.stages.authorize import authorize
from mcp_junction.calls.stages.forward import Forward
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.calls.stages.resolve import ResolveCall
from mcp_junction.calls.stages.subscribe import Subscribe, Subscriptions
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream.outcome import Outcome

_NOT_OF_TASKS = frozenset(ALL_METHODS) - OF_TASKS
_ANSWERED_ONCE = frozenset(ALL_METHODS) - SUBSCRIBING
_AUTHORIZE: Final = "authorize"


class SimpleStage(Protocol):
    """One policy around the rest of the path."""

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """A stage that only checks is a plain function that returns ``following(call)``."""
        ...


@runtime_checkable
class BoundStage(Protocol):
    """The same for every call: what follows is told once, so that no frame is needed for it."""

    def bind(self, following: Handler) -> Handler:
        """Return the path that begins with this stage."""
        ...


Stage = SimpleStage | BoundStage


class MethodStage(NamedTuple):
    """A BoundStage that is one method of something."""

    bind: Callable[[Handler], Handler]


class PlacedStage(NamedTuple):
    """A stage, its name, and the calls that it applies to."""

    name: str
    stage: Stage
    methods: Collection[str] = ALL_METHODS
    takes_plain: bool = True
    """Whether plain calls take it, too; ``authorize`` has found out which these are."""


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
    register: Subscriptions
    sinks: Sequence[CallSink] = ()
    intend: Stage | None = None
    """Writes to the audit, in strict mode, what is about to be sent."""
    extra: Sequence[ExtraStage] = ()
    governed: GovernedStages = UNGOVERNED
    ask_client: Callable[[Call, Outcome], Outcome] | None = None


def stages_of(parts: PipelineParts) -> list[PlacedStage]:
    """The stages before ``forward``, in order."""
    governed = parts.governed
    record = RecordCall(parts.clock, parts.deadlines, parts.sinks, parts.ask_client)
    listed: list[tuple[str, Stage | None, Collection[str], bool]] = [
        ("record", record, ALL_METHODS, True),
        ("resolve", ResolveCall(), _NOT_OF_TASKS, True),
        ("resolve_task", parts.resolve_task, OF_TASKS, True),
        (_AUTHORIZE, governed.authorize or authorize, ALL_METHODS, True),
        ("own", parts.own, (CALL_TOOL,), False),
        ("resume", parts.resume, _ANSWERED_ONCE, False),
        ("limit", governed.limit, ALL_METHODS, True),
        ("validate", governed.validate, (CALL_TOOL,), True),
        ("idempotency", governed.idempotency, (CALL_TOOL,), False),
        ("fallback", governed.fallback, (CALL_TOOL,), False),
        ("admit", governed.admit, (CALL_TOOL,), False),
        ("subscribe", Subscribe(parts.register), SUBSCRIBING, True),
        ("retry", governed.retry, _ANSWERED_ONCE, True),
        # for each attempt:
        ("recheck", governed.recheck, ALL_METHODS, True),
        ("breaker", governed.breaker, ALL_METHODS, True),
        ("intent", parts.intend, ALL_METHODS, True),
    ]
    stages = [
        PlacedStage(name, stage, methods, takes_plain)
        for name, stage, methods, takes_plain in listed
        if stage is not None
    ]
    for after, stage in parts.extra:
        place = next(i for i, placed in enumerate(stages) if placed.name == after)
        stages.insert(place + 1, PlacedStage("extra", stage))
    return stages


def build_handlers(parts: PipelineParts) -> Mapping[str, Handler]:
    """Compose the path of each method."""
    stages = stages_of(parts)
    forward = Forward(parts.clock, parts.deadlines, parts.links).__call__
    return {method: _path(stages, method, forward) for method in ALL_METHODS}


def _path(stages: Sequence[PlacedStage], method: str, last: Handler) -> Handler:
    """Compose the path of a method, which forks where it is known which calls are plain."""
    placed = [one for one in stages if method in one.methods]
    fork = 1 + next(i for i, one in enumerate(placed) if one.name == _AUTHORIZE)
    whole = compose((one.stage for one in placed[fork:]), last)
    shorter = compose((one.stage for one in placed[fork:] if one.takes_plain), last)

    def choose(call: Call) -> Awaitable[Outcome]:
        return shorter(call) if call.is_plain else whole(call)

    is_forked = not all(one.takes_plain for one in placed)
    return compose((one.stage for one in placed[:fork]), choose if is_forked else whole)


def compose(stages: Iterable[Stage], last: Handler) -> Handler:
    """One handler from stages, the first of them outermost."""
    handler = last
    for stage in reversed(list(stages)):
        handler = _around(stage, handler)
    return handler


def _around(stage: Stage, following: Handler) -> Handler:
    """A closure: on the path of every call it costs a third of what ``partial`` does."""
    if isinstance(stage, BoundStage):
        return stage.bind(following)
    around = stage if isinstance(stage, FunctionType | MethodType) else stage.__call__

    def handler(call: Call) -> Awaitable[Outcome]:
        return around(call, following)

    return handler
