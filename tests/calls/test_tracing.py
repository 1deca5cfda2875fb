"""Retries and fallbacks are spans of their own, below the span of their call."""

import random

import pytest
from tests.calls.judged_world import JudgedWorld, grant
from tests.calls.test_fallback import REFUSED, TWO, FallbackWorld

from mcp_junction.calls.otlp_sender import MAX_QUEUED, OtlpSender
from mcp_junction.calls.pipeline import ExtraStage, MethodStage
from mcp_junction.calls.tracing import Tracing, _describe
from mcp_junction.protocol.versions import CIRCUIT_OPEN
from mcp_junction.telemetry.otlp import MAX_SERIES, Durations, encode_metrics, read_traceparent
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.outcome import Delivery, failed


def make(share: float = 1.0, chance=random.random) -> Tracing:
    clock = FakeClock()
    sender = OtlpSender("http://127.0.0.1:4318", "junction", "1", clock)
    return Tracing(sender, share, clock, chance)


def stages(tracing: Tracing, is_told: bool = False, after: str = "retry") -> list[ExtraStage]:
    bind_attempt = tracing.bind_repeatable_attempt if is_told else tracing.bind_attempt
    inner = ExtraStage(after, MethodStage(bind_attempt))
    return [ExtraStage("record", MethodStage(tracing.bind_call)), inner]


def points(tracing: Tracing) -> list[dict[tuple[str, str], int]]:
    """How many calls and attempts were counted, by tool and error."""
    found = []
    for one in tracing.sender.read_metrics():
        counts: dict[tuple[str, str], int] = {}
        for point in one.encode(1)["histogram"]["dataPoints"]:
            told = {a["key"]: a["value"]["stringValue"] for a in point["attributes"]}
            key = told["gen_ai.tool.name"], told.get("error.type", "")
            counts[key] = counts.get(key, 0) + int(point["count"])
        found.append(counts)
    return found


@pytest.mark.req("P-6")
async def test_each_retry_and_the_fallback_have_a_span():
    tracing = make()
    world = FallbackWorld(TWO, extra=stages(tracing))
    world.ends["one"] = REFUSED
    call = world.make()
    await world.run(call)
    *attempts, whole = tracing.sender.queue
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
    tracing.sender.queue.extend([None] * MAX_QUEUED)
    world = FallbackWorld(TWO, extra=stages(tracing))
    await world.run(world.make())
    assert tracing.sender.dropped == 2


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_attempts_are_counted_whether_they_are_sampled_or_not(share, is_told):
    """``is_told``: the stage ``retry`` says when a first attempt has failed, as in the service."""
    tracing = make(share)
    note_first = tracing.count_first if is_told else None
    world = FallbackWorld(TWO, extra=stages(tracing, is_told), note_first=note_first)
    await world.clock.advance(1.0)  # at 0 nothing was sent yet
    await world.run(world.make())
    world.ends["one"] = REFUSED
    await world.run(world.make())
    for ended in world.sink.calls:
        tracing.observe(ended)
    calls, attempts = points(tracing)
    assert calls == {("one:echo", ""): 2}
    (code,) = {error for _, error in attempts} - {""}
    assert attempts == {("one:echo", ""): 1, ("one:echo", code): 2, ("two:other", ""): 1}
    assert len(tracing.sender.queue) == (6 if share else 0)


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_an_attempt_that_the_breaker_refuses_is_none(share):
    tracing = make(share)

    async def refuse(call, following):
        return failed(CIRCUIT_OPEN, "the circuit is open", Delivery.NOT_SENT)

    extra, note_first = stages(tracing, True, after="breaker"), tracing.count_first
    world = FallbackWorld(TWO, extra=extra, breaker=refuse, note_first=note_first)
    await world.run(world.make())
    for ended in world.sink.calls:
        tracing.observe(ended)
    calls, attempts = points(tracing)
    assert list(calls.values()) == [1]
    assert attempts == {}


async def test_so_many_traces_are_sampled_as_is_wanted():
    tracing = make(0.25, iter([0.1, 0.25, 0.9, 0.2]).__next__)
    world = FallbackWorld(TWO, extra=stages(tracing))
    for _ in range(4):
        await world.run(world.make())
    assert len(tracing.sender.queue) == 4  # a call and its attempt, of two


def test_there_are_never_too_many_series():
    durations = Durations("x", ("n",), 0)
    for n in range(MAX_SERIES + 100):
        durations.add((str(n),), [0.5])
    made = durations.encode(1)
    assert len(made["histogram"]["dataPoints"]) == MAX_SERIES
    assert encode_metrics([durations], 1, {}).startswith(b'{"resourceMetrics"')


async def test_a_span_shows_no_secret_of_an_address():
    world = JudgedWorld(one := FakeUpstream("one", ["echo"]))
    world.give(grant("*", kinds=("resources",)))
    uri = "db://user:pass-word-1234@host/table?key=abcdef"
    world.offer(one, resources=[{"uri": uri, "name": "t"}])
    call = world.ask(uri, method="resources/read")
    await world.run(call)
    shown = _describe(call, "")["mcp.resource.uri"]
    assert shown.startswith("db://")
    assert "pass-word" not in shown
    assert "abcdef" not in shown
