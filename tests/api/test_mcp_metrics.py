"""`GET /api/v1/mcp/metrics` and the metrics of calls at `/metrics`, over HTTP."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.api.test_metrics import scraped

from mcp_junction.registry import metrics
from mcp_junction.resilience.breaker import BreakerRow, BreakerState

pytestmark = pytest.mark.req("REQ-MCP-OBS-001")
METRICS = "/api/v1/mcp/metrics"


async def read(served, role="admin", **asked) -> dict:
    answer = await served.client(role).get(METRICS, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.req("MCP-GET-metrics")
async def test_calls_are_counted_over_a_time(served):
    await served.register()
    for _ in range(4):
        await served.call("peer.echo")
    await served.call("peer.fail")
    await served.call("peer.nothing")
    found = await read(served)
    assert (found["calls"], found["errors"]) == (6, {"not_found": 1, "tool": 1})
    assert found["error_rate"] == pytest.approx(2 / 6, abs=1e-5)
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
    assert (found["retries"], found["fallbacks"], found["open_circuits"]) == (0, 0, [])
    tools = [(one["server_id"], one["tool_name"], one["calls"]) for one in found["tools"]]
    assert tools[0] == ("peer", "echo", 4)
    assert sorted(tools[1:]) == [("", "other", 1), ("peer", "fail", 1)]
    assert (await read(served, server_id="peer"))["calls"] == 5
    assert (await read(served, server_id="peer", tool_name="echo"))["calls"] == 4
    await served.registry.metrics_history.store_last()
    for time_range in ("15m", "1h", "24h", "7d"):
        assert (await read(served, "viewer", time_range=time_range))["calls"] == 6, time_range
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    around = f"{(now - hour).isoformat()}/{(now + hour).isoformat()}"
    assert (await read(served, "orchestrator", time_range=around))["calls"] == 6
    before = f"{(now - 2 * hour).isoformat()}/{(now - hour).isoformat()}"
    assert (await read(served, time_range=before))["calls"] == 0


@pytest.mark.parametrize(
    "time_range",
    [
        "",
        "2x",
        "1h/",
        "/",
        "a/b",
        "2027-01-02/2027-01-01",
        "1/99999999999999999999",
        f"1/{'9' * 80}",
        "0001-01-01T00:00:00+05:00/2027-01-01",
    ],
)
async def test_a_range_that_is_none_is_refused(gateway, time_range):
    served = await gateway()
    answer = await served.client().get(METRICS, params={"time_range": time_range})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "BadRequestError"
    if "/" not in time_range:
        assert "must be one of 15m, 1h, 24h, 7d, or two times" in error["message"]


async def test_who_may_not_read_it_and_what_is_not_there(gateway):
    served = await gateway()
    answer = await served.client("agent").get(METRICS)
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenError")
    answer = await served.client().get(METRICS, params={"server_id": "nobody"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "ServerNotFoundError")


async def test_a_scrape_shows_calls_with_names_of_the_registry_alone(served):
    await served.register()
    await served.call("peer.echo")
    await served.call("peer.evil-canary", role="agent")
    found = await scraped(served)
    tool = {"server_id": "peer", "tool_name": "echo"}
    assert found.of("mcp_invocations_total", **tool, status="success") == 1
    assert found.of("mcp_invocation_latency_ms_count", **tool) == 1
    other = {"server_id": "", "tool_name": "other"}
    assert found.of("mcp_errors_total", **other, error_type="not_found") == 1
    assert found.of("mcp_aggregator_routing_duration_seconds_count") == 1
    assert found.types["mcp_circuit_state"] == "gauge"
    assert found.types["mcp_retries_total"] == "counter"
    assert "canary" not in str(found.samples)
    assert "the-agent" not in str(found.samples)


def test_circuits_are_shown_by_their_state_and_only_so_many():
    states = [BreakerState.CLOSED] * 400 + [BreakerState.OPEN, BreakerState.HALF_OPEN]
    rows = [BreakerRow("s", f"t{n:03}", state) for n, state in enumerate(states)]
    shown = metrics._states(rows, lambda server: f"name-of-{server}")
    assert len(shown) == metrics.CIRCUITS
    assert shown["name-of-s:t400"] == 1
    assert shown["name-of-s:t401"] == 2
    assert shown["name-of-s:t000"] == 0
