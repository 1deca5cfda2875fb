"""Spans and durations of calls in OTLP's JSON, by the conventions for MCP and GenAI.

Pure: identifiers, trace contexts and encoding. ``calls/tracing.py`` makes spans of calls,
``calls/otlp_sender.py`` sends them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from random import getrandbits
from typing import Any, Final

import msgspec

SERVER: Final = 2
CLIENT: Final = 3
"""Kinds of spans: of a request that we answer, and of one that we make."""
BOUNDS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds that bound the buckets of durations."""
MAX_SERIES: Final = 2_000
_PARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SCOPE: Final = {"name": "mcp-junction"}


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A place in a trace, as W3C's ``traceparent`` has it."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def header(self) -> str:
        """The text that it is passed on as."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


class Span(msgspec.Struct, gc=False):
    """One operation of a trace."""

    name: str
    kind: int
    context: TraceContext
    parent_id: str
    began: int
    """Nanoseconds since 1970."""
    ended: int
    attributes: Mapping[str, str | int]
    is_error: bool = False


def read_traceparent(text: str | None) -> TraceContext | None:
    """Read a ``traceparent``; None for one that is not valid, as W3C wants it."""
    found = _PARENT.fullmatch(text) if text else None
    return None if found is None else TraceContext(found[1], found[2], bool(int(found[3], 16) & 1))


def begin_trace() -> TraceContext:
    """Begin a trace that is sampled."""
    return TraceContext(f"{getrandbits(128) | 1:032x}", _new_span_id(), True)


def begin_span(parent: TraceContext) -> TraceContext:
    """Begin a span below its parent."""
    return TraceContext(parent.trace_id, _new_span_id(), parent.is_sampled)


def _new_span_id() -> str:
    return f"{getrandbits(64) | 1:016x}"


class Durations:
    """A metric: durations by their attributes, in buckets, since the process was started."""

    __slots__ = ("_name", "_names", "_series", "_since")

    def __init__(self, name: str, names: tuple[str, ...], since: int) -> None:
        """``names`` are those of the attributes."""
        self._name = name
        self._names = names
        self._since = since
        self._series: dict[tuple[str, ...], list[float]] = {}

    def add(self, key: tuple[str, ...], seconds: Sequence[float]) -> None:
        """Count some; ``key`` is the values of the attributes."""
        if not seconds:
            return
        counts = self._series.get(key)
        if counts is None:
            if len(self._series) >= MAX_SERIES:
                return
            counts = self._series[key] = [0.0] * (len(BOUNDS) + 2)
        ordered, below = sorted(seconds), 0
        for place, bound in enumerate(BOUNDS):
            up_to = bisect_right(ordered, bound, below)
            counts[place] += up_to - below
            below = up_to
        counts[len(BOUNDS)] += len(ordered) - below
        counts[-1] += sum(ordered)

    def copy(self) -> Durations:
        """Return the durations as they are now, for another thread to encode."""
        made = Durations(self._name, self._names, self._since)
        made._series = {key: list(counts) for key, counts in self._series.items()}
        return made

    def encode(self, now: int) -> dict[str, Any]:
        """Make the metric as it is sent."""
        points = [
            {
                "attributes": _attributes(
                    {name: value for name, value in zip(self._names, key, strict=True) if value}
                ),
                "startTimeUnixNano": str(self._since),
                "timeUnixNano": str(now),
                "count": str(int(sum(counts[:-1]))),
                "sum": counts[-1],
                "bucketCounts": [str(int(count)) for count in counts[:-1]],
                "explicitBounds": list(BOUNDS),
            }
            for key, counts in self._series.items()
        ]
        histogram = {"aggregationTemporality": 2, "dataPoints": points}
        return {"name": self._name, "unit": "s", "histogram": histogram}


def encode_spans(spans: Iterable[Span], resource: Mapping[str, str]) -> bytes:
    """Make the body of a request to ``/v1/traces``."""
    made = [
        {
            "traceId": span.context.trace_id,
            "spanId": span.context.span_id,
            **({"parentSpanId": span.parent_id} if span.parent_id else {}),
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(span.began),
            "endTimeUnixNano": str(span.ended),
            "attributes": _attributes(span.attributes),
            "status": {"code": 2} if span.is_error else {},
        }
        for span in spans
    ]
    scoped = [{"scope": _SCOPE, "spans": made}]
    body = [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": scoped}]
    return msgspec.json.encode({"resourceSpans": body})


def encode_metrics(metrics: Iterable[Durations], now: int, resource: Mapping[str, str]) -> bytes:
    """Make the body of a request to ``/v1/metrics``."""
    scoped = [{"scope": _SCOPE, "metrics": [one.encode(now) for one in metrics]}]
    body = [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": scoped}]
    return msgspec.json.encode({"resourceMetrics": body})


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {
            "key": name,
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for name, value in values.items()
    ]
