"""Tracing: makes OpenTelemetry spans of calls and of each of their attempts, and counts durations.

It is there only where an OTLP endpoint is set: two stages, one around the whole call and one around
each attempt, so that retries and fallbacks are spans of their own, and a sink of ended calls. Which
calls are sampled is decided before anything is made: any other call is only timed, and its
``_meta`` goes to the server as it came. The trace of a sampled call's caller is continued, and
passed on in ``_meta``. Sending is ``otlp_sender.py``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CALL_TOOL, CallEnded, CallSink
from mcp_junction.calls.otlp_sender import OtlpSender
from mcp_junction.calls.pipeline import ExtraStage, MethodStage
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS, Route
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.envelope import is_tool_error
from mcp_junction.protocol.versions import LATEST_STATELESS, STATELESS
from mcp_junction.redaction.connections import mask_url
from mcp_junction.resilience.clock import Clock
from mcp_junction.telemetry.otlp import (
    CLIENT,
    SERVER,
    Durations,
    Span,
    TraceContext,
    begin_span,
    begin_trace,
    read_traceparent,
)
from mcp_junction.upstream.outcome import CANCELLED, ERROR, RESULT, Outcome

_KEY: Final = "traceparent"
_NAMES: Final = (
    "mcp.method.name",
    "gen_ai.tool.name",
    "gen_ai.prompt.name",
    "error.type",
    "network.transport",
)
SERVER_DURATION: Final = "mcp.server.operation.duration"
CLIENT_DURATION: Final = "mcp.client.operation.duration"
_TOOL_ERROR: Final = "tool_error"
_CANCELLED: Final = "cancelled"
_SETTLED: Final = 1_000
"""Calls of a tool after which their durations are put into buckets."""


class _ToolTimes(msgspec.Struct):
    """Seconds that calls of one tool took, and that its server took of these."""

    key: tuple[str, ...]
    target: str
    transport: str
    whole: list[float]
    at_server: list[float]


class Tracing:
    """Makes spans of calls, and counts how long calls and attempts take."""

    def __init__(
        self,
        sender: OtlpSender,
        share: float,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``share`` of the traces that begin here are sampled."""
        self.sender = sender
        self._share = share
        self._clock = clock
        self._chance = chance
        began = time.time_ns()
        self._calls = Durations(SERVER_DURATION, _NAMES, began)
        self._attempts = Durations(CLIENT_DURATION, _NAMES, began)
        self._by_route: dict[Route | None, _ToolTimes] = {}
        """What usual calls took that are in no bucket yet."""
        self.observe: Final = self._make_observe()
        """Counts how long a call took. A sink of calls."""
        sender.read_metrics = self._read_metrics

    def stages(self, has_retries: bool) -> list[ExtraStage]:
        """Return the stages for the pipeline.

        Without retries a call has one attempt, which begins after ``subscribe``.
        """
        inner = "breaker" if has_retries else "subscribe"
        bind_attempt = self.bind_repeatable_attempt if has_retries else self.bind_attempt
        return [
            ExtraStage("record", MethodStage(self.bind_call)),
            ExtraStage(inner, MethodStage(bind_attempt)),
        ]

    # -- which calls

    def bind_call(self, following: Handler) -> Handler:
        """Return the path around a whole call."""
        share, chance, trace, join = self._share, self._chance, self._trace_call, self._join

        def sample(call: Call) -> Awaitable[Outcome]:
            has_context = call.carried.traceparent is not None or (
                not call.has_plain_meta and "_meta" in call.params
            )
            if has_context:
                return join(call, following)
            return trace(call, following, None) if chance() < share else following(call)

        return sample

    def _join(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """Sample a call as its caller does; begin a trace if that has none."""
        parent = _read_trace_context(call.params.get("_meta"))
        is_in_header = parent is None
        if parent is None:
            parent = read_traceparent(call.carried.traceparent)
        if parent is None:
            is_sampled = self._chance() < self._share
            return self._trace_call(call, following, None) if is_sampled else following(call)
        if parent.is_sampled:
            return self._trace_call(call, following, parent)
        if is_in_header:
            call.params, call.has_plain_meta = _with_context(call.params, parent), False
        return following(call)

    # -- calls

    async def _trace_call(
        self, call: Call, following: Handler, parent: TraceContext | None
    ) -> Outcome:
        """Make the span of a call, below that of its caller."""
        call.trace = context = begin_trace() if parent is None else begin_span(parent)
        began = time.time_ns()
        outcome: Outcome | None = None
        try:
            outcome = await following(call)
            return outcome
        finally:
            attributes = _describe(call, _error_of(call, outcome))
            version = getattr(call.caller, "protocol_version", None)
            attributes["mcp.protocol.version"] = (
                LATEST_STATELESS if call.caller.era is STATELESS else version or "unknown"
            )
            session_id = getattr(call.caller, "id", "")
            if session_id:
                attributes["mcp.session.id"] = session_id
            parent_id = "" if parent is None else parent.span_id
            self.sender.add(_make_span(call, SERVER, context, parent_id, began, attributes))

    def _make_observe(self) -> CallSink:
        """Return the sink of calls: a closure, which looks up nothing of this object each time."""
        by_route, open_times, settle = self._by_route, self._open, self._settle
        count_unusual = self._count_unusual

        def observe(ended: CallEnded) -> None:
            outcome, routing = ended.outcome, ended.routing_seconds
            if outcome.attempts == 1 and outcome.kind is RESULT and not ended.read_tool_error:
                times = by_route.get(ended.route) or open_times(ended)
                # Compared by identity: an answer from a record was not sent, and has a copy of
                # the target's name. A call that was parked was counted when it was suspended.
                if times is not None and outcome.target is times.target and routing >= 0:
                    seconds, whole = ended.seconds, times.whole
                    whole.append(seconds)
                    times.at_server.append(seconds - routing)
                    if len(whole) >= _SETTLED:
                        settle(times)
                    return
            count_unusual(ended)

        return observe

    def _open(self, ended: CallEnded) -> _ToolTimes | None:
        """Begin to collect what calls of a tool take; None for what is no tool."""
        route = ended.route
        if route is None or ended.method != CALL_TOOL:
            return None
        key = (CALL_TOOL, route.canonical, "", "")
        times = _ToolTimes(key, route.canonical, _transport_of(route), [], [])
        self._by_route[route] = times
        return times

    def _count_unusual(self, ended: CallEnded) -> None:
        """Count a call that failed, was made again, or is of another method."""
        route, outcome = ended.route, ended.outcome
        error = _name_error(outcome) or (_TOOL_ERROR if ended.is_tool_error else "")
        key = _key_of(ended.method, route, error)
        self._calls.add((*key, ""), (ended.seconds,))
        was_measured = outcome.kind is not RESULT or outcome.attempts > 1
        if route is None or was_measured or ended.fallback is not None:
            return  # each of its attempts was counted
        if ended.routing_seconds >= 0:
            seconds = ended.seconds - ended.routing_seconds
            self._attempts.add((*key, _transport_of(route)), (seconds,))

    def _settle(self, times: _ToolTimes) -> None:
        whole, times.whole = times.whole, []
        at_server, times.at_server = times.at_server, []
        self._calls.add((*times.key, ""), whole)
        self._attempts.add((*times.key, times.transport), at_server)

    def _read_metrics(self) -> list[Durations]:
        """Return the durations of all calls and attempts as they are now."""
        for times in self._by_route.values():
            self._settle(times)
        self._by_route.clear()  # which also lets go of routes that nobody has any more
        return [self._calls.copy(), self._attempts.copy()]

    # -- attempts

    def bind_attempt(self, following: Handler) -> Handler:
        """Return the path around one attempt."""
        now, count, trace = self._clock.now, self._count_attempt, self._trace_attempt

        async def attempt(call: Call) -> Outcome:
            if call.trace is not None:
                return await trace(call, following, call.trace)
            is_first = not call.attempts and call.in_place_of is None
            began = 0.0 if is_first else now()
            try:
                outcome = await following(call)
            except BaseException:
                count(call, None, now() - (began or call.sent_at or now()))
                raise
            if not is_first or outcome.kind is not RESULT:
                count(call, outcome, now() - (began or call.sent_at or now()))
            return outcome  # else its call is counted with it

        return attempt

    def bind_repeatable_attempt(self, following: Handler) -> Handler:
        """Return the path around one attempt of a call that the stage ``retry`` stands around.

        A first attempt that succeeds is counted with its call; ``retry`` tells ``count_first`` of
        any other.
        """
        measured = self.bind_attempt(following)

        def attempt(call: Call) -> Awaitable[Outcome]:
            is_first = not call.attempts and call.in_place_of is None
            if is_first and call.trace is None and call.is_retried:
                call.has_unmeasured_attempt = True
                return following(call)
            return measured(call)

        return attempt

    def count_first(self, call: Call, outcome: Outcome | None) -> None:
        """Count the first attempt of a call, which has just ended without a result."""
        if call.has_unmeasured_attempt:  # else it was measured, or refused before it was made
            call.has_unmeasured_attempt = False
            now = self._clock.now()
            self._count_attempt(call, outcome, now - (call.sent_at or now))

    async def _trace_attempt(self, call: Call, following: Handler, above: TraceContext) -> Outcome:
        """Make the span of an attempt, and pass its context on to the server."""
        context = begin_span(above)
        params, is_plain = call.params, call.has_plain_meta
        call.params, call.has_plain_meta = _with_context(params, context), False
        is_first = not call.attempts and call.in_place_of is None
        number, began, from_ = call.attempts + 1, time.time_ns(), self._clock.now()
        outcome: Outcome | None = None
        try:
            outcome = await following(call)
            return outcome
        finally:
            call.params, call.has_plain_meta = params, is_plain
            if not is_first or outcome is None or outcome.kind is not RESULT:
                self._count_attempt(call, outcome, self._clock.now() - from_)
            attributes = _describe(call, _error_of(call, outcome)) | _describe_server(call)
            attributes["junction.attempt"] = number
            self.sender.add(_make_span(call, CLIENT, context, above.span_id, began, attributes))

    def _count_attempt(self, call: Call, outcome: Outcome | None, seconds: float) -> None:
        route = call.route
        assert route is not None, "resolve comes first"
        key = _key_of(call.method, route, _error_of(call, outcome))
        self._attempts.add((*key, _transport_of(route)), (seconds,))


# -- contexts


def _read_trace_context(meta: Raw | None) -> TraceContext | None:
    """Read the context that ``_meta`` has."""
    if meta is None or _KEY.encode() not in bytes(meta):
        return None
    return read_traceparent(frames.text(frames.object_members(meta).get(_KEY)))


def _with_context(params: dict[str, Raw], context: TraceContext) -> dict[str, Raw]:
    kept = frames.object_members(params.get("_meta")) if "_meta" in params else {}
    text = Raw(encode.dumps(context.header))
    return {**params, "_meta": Raw(encode.dumps({**kept, _KEY: text}))}


# -- what spans say


def _make_span(
    call: Call,
    kind: int,
    context: TraceContext,
    parent_id: str,
    began: int,
    attributes: dict[str, str | int],
) -> Span:
    target = attributes.get("gen_ai.tool.name") or attributes.get("gen_ai.prompt.name")
    name = f"{call.method} {target}" if target else call.method
    is_error = "error.type" in attributes
    return Span(name, kind, context, parent_id, began, time.time_ns(), attributes, is_error)


def _describe(call: Call, error: str) -> dict[str, str | int]:
    """Describe an operation by the conventions for MCP."""
    attributes: dict[str, str | int] = {
        "mcp.method.name": call.method,
        "junction.correlation_id": call.correlation_id,
    }
    route, kind = call.route, call.address.kind
    if call.method == CALL_TOOL:
        attributes["gen_ai.operation.name"] = "execute_tool"
    if route is not None and kind is TOOLS:
        attributes["gen_ai.tool.name"] = route.canonical
    elif route is not None and kind is PROMPTS:
        attributes["gen_ai.prompt.name"] = route.canonical
    elif route is not None and kind is RESOURCES:
        attributes["mcp.resource.uri"] = mask_url(route.pair.name).partition("?")[0]
    if error:
        attributes["error.type"] = error
    return attributes


def _describe_server(call: Call) -> dict[str, str | int]:
    """Describe the server of an attempt, and how it is reached."""
    route = call.route
    assert route is not None, "resolve comes first"
    attributes: dict[str, str | int] = {
        "network.transport": _transport_of(route),
        "junction.server": route.pair.server,
    }
    if attributes["network.transport"] == "tcp":
        attributes["network.protocol.name"] = "http"
    greeting = route.upstream.greeting
    if greeting is not None:
        attributes["mcp.protocol.version"] = greeting.protocol_version
    if call.in_place_of is not None:
        attributes["junction.in_place_of"] = call.in_place_of[0].canonical
    return attributes


def _key_of(method: str, route: Route | None, error: str) -> tuple[str, str, str, str]:
    """Return the values of ``_NAMES`` but for the transport; addresses are never labels."""
    if route is None or method not in (CALL_TOOL, "prompts/get"):
        return method, "", "", error
    if method == CALL_TOOL:
        return method, route.canonical, "", error
    return method, "", route.canonical, error


def _transport_of(route: Route) -> str:
    return "pipe" if route.upstream.definition.transport == "stdio" else "tcp"


def _error_of(call: Call, outcome: Outcome | None) -> str:
    """Name how an operation failed; empty when it did not."""
    if outcome is None:
        return _CANCELLED
    if outcome.kind is RESULT and call.method == CALL_TOOL and is_tool_error(outcome.payload):
        return _TOOL_ERROR
    return _name_error(outcome)


def _name_error(outcome: Outcome) -> str:
    if outcome.kind is CANCELLED:
        return _CANCELLED
    return str(outcome.code) if outcome.kind is ERROR else ""
