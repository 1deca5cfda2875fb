"""OtlpSender: keeps finished spans for a moment and posts them, and metrics, to an OTLP endpoint.

It works off the path of calls: a call only puts its spans into the queue. What does not fit there
or cannot be sent is counted, never waited for. Making spans is ``tracing.py``, the format
``telemetry/otlp.py``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from mcp_junction.errors import AddressRefused, UsageError
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.resilience.clock import Clock
from mcp_junction.telemetry.otlp import Durations, Span, encode_metrics, encode_spans
from mcp_junction.upstream.http.connection import parse_target
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch

log = logging.getLogger("mcp_junction.telemetry")

EVERY: Final = 2.0
"""Seconds between requests to the endpoint."""
METRICS_EVERY: Final = 15.0
MAX_QUEUED: Final = 20_000
AT_ONCE: Final = 2_000


class OtlpSender:
    """Posts spans and metrics to an endpoint."""

    def __init__(self, endpoint: str, name: str, version: str, clock: Clock) -> None:
        """Raises UsageError for an endpoint that is no address."""
        try:
            parse_target(endpoint)
        except ValueError as error:
            raise UsageError(f"otlp_endpoint: {error}") from None
        self._endpoint = endpoint.rstrip("/")
        self._resource = {"service.name": name, "service.version": version}
        self._clock = clock
        self._dialer = Dialer(Permissions(allow_private=True, allow_http=True))
        self.queue: deque[Span] = deque()
        self.read_metrics: Callable[[], list[Durations]] = list
        """Returns the durations that are sent as metrics."""
        self.dropped = 0
        """Spans that were not sent."""

    def add(self, span: Span) -> None:
        """Put a finished span into the queue, if that has room."""
        if len(self.queue) >= MAX_QUEUED:
            self.dropped += 1
        else:
            self.queue.append(span)

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
        while self.queue:
            spans = [self.queue.popleft() for _ in range(min(AT_ONCE, len(self.queue)))]
            body = await asyncio.to_thread(encode_spans, spans, self._resource)
            if not await self._send("/v1/traces", body):
                self.dropped += len(spans)
                return

    async def send_metrics(self) -> None:
        """Send the durations of all calls and attempts."""
        read = self.read_metrics()
        body = await asyncio.to_thread(encode_metrics, read, time.time_ns(), self._resource)
        await self._send("/v1/metrics", body)

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
