"""CallMetrics: what of each call is counted, and as what."""

import random

import pytest
from tests.calls.world import World
from tests.telemetry.grammar import Metrics

from mcp_junction.calls.call import NOTHING_CARRIED
from mcp_junction.calls.events import CallEnded
from mcp_junction.calls.metrics import ERROR_TYPES, CallMetrics
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol import names, versions
from mcp_junction.registry.metrics import families_of_calls
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.telemetry.exposition import format_families
from mcp_junction.telemetry.tallies import OTHER
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import SUSPENDED, Delivery, Outcome

pytestmark = pytest.mark.req("REQ-MCP-OBS-001")
NOT_SENT = Delivery.NOT_SENT
OK = outcomes.result(b'{"content":[]}').counted(1, "s:t")
TOOL_ERROR = outcomes.result(b'{"content":[],"isError":true}').counted(1, "s:t")


@pytest.fixture
async def route():
    return World(FakeUpstream("s", ["t"])).snapshot.catalog.view(names.STDIO).find("s:t")


def ended(route, outcome, seconds=0.02, **more) -> CallEnded:
    given = {"method": "tools/call", "name": "s:t", "is_own": False, **more}
    return CallEnded(
        principal=LOCAL_OWNER,
        route=route,
        arguments=None,
        outcome=outcome,
        seconds=seconds,
        routing_seconds=0.0002,
        **given,
    )


def failed(code, delivery=NOT_SENT, attempts=0, kind=None):
    failure = None if kind is None else Failure(kind)
    made = outcomes.failed(code, "no", delivery, failure=failure)
    return made.counted(attempts, "s:t")


ERRORS = [
    (failed(versions.CALL_TIMEOUT, Delivery.UNKNOWN, 1), "timeout"),
    (failed(versions.DENIED), "authorization"),
    (failed(versions.APPROVAL_NEEDED), "authorization"),
    (failed(versions.CIRCUIT_OPEN), "circuit_breaker"),
    (failed(versions.RATE_LIMITED), "rate_limit"),
    (failed(versions.LINK_LOST, Delivery.UNKNOWN, 1), "transport"),
    (failed(versions.SERVER_UNAVAILABLE), "transport"),
    (failed(versions.INVALID_PARAMS), "other"),
    (failed(0, Delivery.UNKNOWN, 1, FailureKind.TIMEOUT), "timeout"),
    (failed(0, None, 1, FailureKind.SERVER_FAULT), "transport"),
    (outcomes.refused(b'{"code":-32001,"message":"its own"}').counted(1, "s:t"), "tool"),
    (outcomes.cancelled("enough", Delivery.UNKNOWN), "other"),
    (TOOL_ERROR, "tool"),
]


@pytest.mark.parametrize(("outcome", "error"), ERRORS)
def test_each_failure_is_of_one_of_the_types(route, outcome, error):
    metrics = CallMetrics()
    metrics.observe(ended(route, outcome))
    (tally,) = metrics.take_minute().values()
    assert (tally.calls, tally.errors) == (1, {error: 1})
    assert error in ERROR_TYPES


def test_what_leads_nowhere_is_counted_without_its_name(route):
    metrics = CallMetrics()
    metrics.observe(ended(None, failed(versions.INVALID_PARAMS), name="evil"))
    metrics.observe(ended(None, failed(versions.INVALID_PARAMS), hidden=route))
    metrics.observe(ended(route, failed(versions.DENIED), denial="no grant"))
    taken = metrics.take_minute()
    assert taken[OTHER].errors == {"not_found": 1, "authorization": 1}
    assert len(taken) == 2


def test_what_is_no_end_of_a_tools_call_is_not_counted(route):
    metrics = CallMetrics()
    metrics.observe(ended(route, Outcome(SUSPENDED, b"{}", attempts=1)))
    metrics.observe(ended(route, OK, method="prompts/get"))
    metrics.observe(ended(None, outcomes.result(b"{}"), is_own=True))
    assert sum(tally.calls for tally in metrics.take_minute().values()) == 0


def test_retries_and_fallbacks_are_counted_apart(route):
    metrics = CallMetrics()
    metrics.observe(ended(route, OK.counted(3, "s:t")))
    metrics.observe(ended(route, OK.counted(4, "mirror:t")))
    (tally,) = metrics.take_minute().values()
    assert (tally.retries, tally.fallbacks, tally.calls) == (2 + 2, 1, 2)


def test_the_text_has_the_names_labels_and_buckets_that_were_promised(route):
    metrics = CallMetrics()
    for seconds in (0.005, 0.010, 0.040, 0.3, 9.0):
        metrics.observe(ended(route, OK, seconds))
    metrics.observe(ended(route, TOOL_ERROR, 0.001))
    metrics.take_minute()
    metrics.observe(ended(route, OK.counted(2, "s:t"), 0.02))
    text = format_families(families_of_calls(metrics, (), lambda _: "srv"))
    read = Metrics(text)
    tool = {"server_id": "srv", "tool_name": "t"}
    assert read.of("mcp_invocations_total", **tool, status="success") == 6
    assert read.of("mcp_invocations_total", **tool, status="error") == 1
    assert read.of("mcp_errors_total", **tool, error_type="tool") == 1
    assert read.of("mcp_retries_total", **tool) == 1
    bounds = {"10": 3, "50": 5, "100": 5, "250": 5, "500": 6, "1000": 6, "2500": 6, "5000": 6}
    for bound, calls in {**bounds, "+Inf": 7}.items():
        assert read.of("mcp_invocation_latency_ms_bucket", **tool, le=bound) == calls, bound
    assert read.of("mcp_invocation_latency_ms_count", **tool) == 7
    assert read.of("mcp_invocation_latency_ms_sum", **tool) == pytest.approx(9_376)
    assert read.of("mcp_aggregator_routing_duration_seconds_count") == 7
    assert read.of("mcp_aggregator_routing_duration_seconds_bucket", le="0.0001") == 0
    assert read.of("mcp_aggregator_routing_duration_seconds_bucket", le="0.00025") == 7
    assert b"agent" not in text


@pytest.mark.req("S-09")
async def test_a_hundred_thousand_agents_with_random_names_make_fewer_than_5000_series():
    """Every tenth call is for one of many tools that there are; each fails in its own way."""
    rng, metrics = random.Random(1), CallMetrics()
    tools = [f"t{n}" for n in range(200)]
    world = World(*(FakeUpstream(f"s{n}", tools) for n in range(20)))
    view = world.snapshot.catalog.view(names.STDIO)
    routes = [view.find(f"s{n}:{tool}") for n in range(20) for tool in tools]
    failures = [outcome for outcome, _ in ERRORS]
    for number in range(100_000):
        agent = Principal(f"agent-{number}", Role.AGENT)
        route = rng.choice(routes) if number % 10 == 0 else None
        outcome = rng.choice(failures)
        metrics.observe(
            CallEnded(
                agent, "tools/call", f"x{number}", route, False, None, outcome, 0.001 * number,
                carried=NOTHING_CARRIED,
            )
        )  # fmt: skip
        if number % 5_000 == 0:
            metrics.take_minute()
    read = Metrics(format_families(families_of_calls(metrics, (), lambda server: server)))
    assert 1_000 < len(read.samples) < 3_700, "there is room for the other metrics"
    assert not any("agent-" in str(key) or "'x" in str(key) for key in read.samples)
    calls = sum(n for (name, _), n in read.samples.items() if name == "mcp_invocations_total")
    assert calls <= 100_000
    others = {("server_id", ""), ("tool_name", "other")}
    assert any(others <= labels for _, labels in read.samples)
