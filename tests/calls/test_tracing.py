"""Retries and fallbacks are spans of their own, below the span of their call."""

from tests.calls.test_fallback import REFUSED, TWO, FallbackWorld

from mcp_junction.calls.pipeline import ExtraStage
from mcp_junction.calls.tracing import MAX_QUEUED, Tracing
from mcp_junction.telemetry.otlp import (
    MAX_SERIES,
    Durations,
    begin_span,
    encode_metrics,
    read_traceparent,
)
from mcp_junction.testing.fakes import FakeClock


def make(share: float = 1.0) -> Tracing:
    return Tracing("http://127.0.0.1:4318", share, "junction", "1", FakeClock())


def stages(tracing: Tracing) -> list[ExtraStage]:
    return [ExtraStage("record", tracing.trace_call), ExtraStage("retry", tracing.trace_attempt)]


async def test_each_retry_and_the_fallback_have_a_span():
    tracing = make()
    world = FallbackWorld(TWO, extra=stages(tracing))
    world.ends["one"] = REFUSED
    call = world.make()
    await world.run(call)
    *attempts, whole = tracing._queue
    assert [(one.attributes["gen_ai.tool.name"], one.is_error) for one in attempts] == [
        ("one:echo", True),
        ("one:echo", True),
        ("two:other", False),
    ]
    assert [one.attributes.get("junction.in_place_of") for one in attempts] == [
        None,
        None,
        "one:echo",
    ]
    assert {one.parent_id for one in attempts} == {whole.context.span_id}
    assert len({one.context.span_id for one in attempts}) == 3
    assert not whole.is_error
    seen = [
        params["_meta"]["traceparent"] for params in (*world.params["one"], *world.params["two"])
    ]
    assert [read_traceparent(one).span_id for one in seen] == [
        one.context.span_id for one in attempts
    ]
    assert "_meta" not in call.params  # a call is left as it was


async def test_what_does_not_fit_into_the_queue_is_counted():
    tracing = make()
    tracing._queue.extend([None] * MAX_QUEUED)
    world = FallbackWorld(TWO, extra=stages(tracing))
    await world.run(world.make())
    assert tracing.dropped == 2


def test_so_many_traces_are_sampled_as_is_wanted():
    assert not any(begin_span(None, 0.0).is_sampled for _ in range(1_000))
    assert all(begin_span(None, 1.0).is_sampled for _ in range(1_000))
    some = sum(begin_span(None, 0.1).is_sampled for _ in range(10_000))
    assert 700 < some < 1_300


def test_there_are_never_too_many_series():
    durations = Durations(0)
    for n in range(MAX_SERIES + 100):
        durations.add((str(n),), 0.5)
    made = durations.encode("x", ("n",), 1)
    assert len(made["histogram"]["dataPoints"]) == MAX_SERIES
    assert encode_metrics([made], {}).startswith(b'{"resourceMetrics"')
