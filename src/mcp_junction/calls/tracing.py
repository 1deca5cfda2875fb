"""Tracing: makes OpenTelemetry spans of calls and of each of their attempts, and sends them.

It is there only where an OTLP endpoint is set: two stages, one around the whole call and one around
each attempt, so that retries and fallbacks are spans of their own. The caller's trace is continued,
and passed on to servers in ``_meta``. Spans are queued, encoded and sent off the path of calls;
what does not fit or cannot be sent is counted, never waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.pipeline import ExtraStage
from mcp_junction.errors import AddressRefused, UsageError
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.versions import STATELESS
from mcp_junction.resilience.clock import Clock
from mcp_junction.telemetry.otlp import (
    CLIENT,
    SERVER,
    Durations,
    Span,
    TraceContext,
    begin_span,
    encode_metrics,
    encode_spans,
    read_traceparent,
)
from mcp_junction.upstream.http.connection import parse_target
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch
from mcp_junction.upstream.outcome import ERROR, Outcome

log = logging.getLogger("mcp_junction.telemetry")

EVERY: Final = 2.0
"""Seconds between requests to the endpoint."""
METRICS_EVERY: Final = 15.0
MAX_QUEUED: Final = 20_000
AT_ONCE: Final = 2_000
_KEY: Final = "traceparent"
_NAMES: Final = ("mcp.method.name", "gen_ai.tool.name", "error.type", "network.transport")
_SERVER_DURATION: Final = "mcp.server.operation.duration"
_CLIENT_DURATION: Final = "mcp.client.operation.duration"


class Tracing:
    """Makes spans of calls, and sends them to an OTLP endpoint."""

    def __init__(self, endpoint: str, share: float, name: str, version: str, clock: Clock) -> None:
        """``share`` of the traces that begin here are sampled. Raises UsageError."""
        try:
            parse_target(endpoint)
        except ValueError as error:
            raise UsageError(f"otlp_endpoint: {error}") from None
        self._endpoint = endpoint.rstrip("/")
        self._share = share
        self._resource = {"service.name": name, "service.version": version}
        self._clock = clock
        self._dialer = Dialer(Permissions(allow_private=True, allow_http=True))
        self._queue: deque[Span] = deque()
        self._calls = Durations(time.time_ns())
        self._attempts = Durations(time.time_ns())
        self.dropped = 0
        """Spans that were not sent."""

    def stages(self, has_retries: bool) -> list[ExtraStage]:
        """Return the stages for the pipeline; without retries an attempt is what is subscribed."""
        inner = "breaker" if has_retries else "subscribe"
        return [ExtraStage("record", self.trace_call), ExtraStage(inner, self.trace_attempt)]

    # -- stages

    async def trace_call(self, call: Call, following: Handler) -> Outcome:
        """Make the span of a call, below that of its caller."""
        parent = _read_parent(call)
        call.trace = context = begin_span(parent, self._share)
        began = time.time_ns()
        outcome: Outcome | None = None
        try:
            outcome = await following(call)
            return outcome
        finally:
            ended = time.time_ns()
            error = _error_of(outcome)
            tool = call.route.canonical if call.route is not None else ""
            self._calls.add((call.method, tool, error, ""), (ended - began) / 1e9)
            if context.is_sampled:
                attributes = _describe(call, error, tool)
                parent_id = "" if parent is None else parent.span_id
                self._keep(call.method, tool, SERVER, context, parent_id, began, ended, attributes)

    async def trace_attempt(self, call: Call, following: Handler) -> Outcome:
        """Make the span of an attempt, and pass its context on to the server."""
        above = call.trace
        if above is None:
            return await following(call)
        context = begin_span(above, 0.0)
        params, is_plain = call.params, call.has_plain_meta
        call.params, call.has_plain_meta = _with_context(params, context), False
        number, began = call.attempts + 1, time.time_ns()
        outcome: Outcome | None = None
        try:
            outcome = await following(call)
            return outcome
        finally:
            call.params, call.has_plain_meta = params, is_plain
            ended = time.time_ns()
            error, route = _error_of(outcome), call.route
            assert route is not None, "resolve comes first"
            transport = "pipe" if route.upstream.definition.transport == "stdio" else "tcp"
            tool = route.canonical
            self._attempts.add((call.method, tool, error, transport), (ended - began) / 1e9)
            if context.is_sampled:
                attributes = _describe(call, error, tool)
                attributes |= {"network.transport": transport, "junction.attempt": number}
                attributes["junction.server"] = route.pair.server
                if call.in_place_of is not None:
                    attributes["junction.in_place_of"] = call.in_place_of[0].canonical
                self._keep(
                    call.method, tool, CLIENT, context, above.span_id, began, ended, attributes
                )

    def _keep(
        self,
        method: str,
        tool: str,
        kind: int,
        context: TraceContext,
        parent_id: str,
        began: int,
        ended: int,
        attributes: dict[str, str | int],
    ) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        name = f"{method} {tool}" if tool else method
        is_error = "error.type" in attributes
        self._queue.append(Span(name, kind, context, parent_id, began, ended, attributes, is_error))

    # -- in the background

    async def run(self) -> None:
        """Send what is queued. A supervised task."""
        metrics_at = self._clock.now() + METRICS_EVERY
        while True:
            await self._clock.sleep(EVERY)
            await self.send_spans()
            if self._clock.now() >= metrics_at:
                metrics_at = self._clock.now() + METRICS_EVERY
                await self.send_metrics()

    async def send_spans(self) -> None:
        """Send the spans that are queued; what the endpoint does not take is dropped."""
        while self._queue:
            spans = [self._queue.popleft() for _ in range(min(AT_ONCE, len(self._queue)))]
            body = await asyncio.to_thread(encode_spans, spans, self._resource)
            if not await self._send("/v1/traces", body):
                self.dropped += len(spans)
                return

    async def send_metrics(self) -> None:
        """Send the durations of all calls and attempts."""
        now = time.time_ns()
        made = [
            self._calls.encode(_SERVER_DURATION, _NAMES, now),
            self._attempts.encode(_CLIENT_DURATION, _NAMES, now),
        ]
        await self._send("/v1/metrics", encode_metrics(made, self._resource))

    async def _send(self, path: str, body: bytes) -> bool:
        headers = {"content-type": "application/json"}
        try:
            answer = await fetch(
                self._endpoint + path, self._dialer, method="POST", headers=headers, body=body
            )
        except (OSError, AddressRefused) as error:
            log.warning("the OTLP endpoint cannot be reached: %s", error)
            return False
        if answer.status >= 300:
            log.warning("the OTLP endpoint answered %d", answer.status)
        return answer.status < 300


def _read_parent(call: Call) -> TraceContext | None:
    """Read the context of a call from its ``_meta``, else from the header of its request."""
    meta = call.params.get("_meta")
    if meta is not None and b"traceparent" in bytes(meta):
        found = read_traceparent(frames.text(frames.object_members(meta).get(_KEY)))
        if found is not None:
            return found
    return read_traceparent(call.carried.traceparent)


def _with_context(params: dict[str, Raw], context: TraceContext) -> dict[str, Raw]:
    kept = frames.object_members(params.get("_meta")) if "_meta" in params else {}
    text = Raw(encode.dumps(context.header))
    return {**params, "_meta": Raw(encode.dumps({**kept, _KEY: text}))}


def _describe(call: Call, error: str, tool: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "mcp.method.name": call.method,
        "mcp.protocol.version": "2026-07-28" if call.caller.era is STATELESS else "2025-11-25",
        "junction.correlation_id": call.correlation_id,
    }
    if call.method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    if tool:
        attributes["gen_ai.tool.name"] = tool
    if error:
        attributes["error.type"] = error
    return attributes


def _error_of(outcome: Outcome | None) -> str:
    """Name how an operation failed; empty when it did not."""
    if outcome is None:
        return "cancelled"
    return str(outcome.code) if outcome.kind is ERROR else ""
