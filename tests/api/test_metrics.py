"""`/metrics`: how the platform stands, for a monitor; any key opens it, and nothing else does."""

import asyncio
import json

import pytest
from tests.api.test_start import AnyKey
from tests.plugin_rest import ROLES, SERVERS, registration, stdio_config
from tests.registry.toolbox import Toolbox
from tests.telemetry.grammar import Metrics

from mcp_junction.api.front import RestFront
from mcp_junction.audit.entries import Entry
from mcp_junction.config.load import load
from mcp_junction.registry import metrics

METRICS = "/metrics"
CHECKS = ("response_time_seconds", "error_rate", "healthy", "reachable")


async def scraped(served, role: str = "viewer") -> Metrics:
    answer = await served.client(role).get(METRICS)
    assert answer.status_code == 200, answer.text
    return Metrics(answer.content)


async def until(served, is_so) -> Metrics:
    """Scrape until something is so."""
    async with asyncio.timeout(20):
        while not is_so(found := await scraped(served)):  # noqa: ASYNC110 - it is asked over HTTP
            await asyncio.sleep(0.02)
    return found


def far(server: Toolbox, **more) -> dict:
    return {"transport_type": "HTTP", "connection_config": {"url": server.url}, **more}


@pytest.mark.req("AG-US5-AC7")
async def test_response_time_and_error_rate_of_each_server_are_exported(served):
    async with Toolbox() as server, Toolbox() as other:
        await served.register("box", **far(server, timeout_ms=500))
        await served.register("other", **far(other))
        server.gate.clear()
        failing = await asyncio.gather(*(served.call("box.echo") for _ in range(4)))
        assert {answer.status_code for answer in failing} == {504}
        server.gate.set()
        for _ in range(4):
            assert (await served.call("box.echo")).status_code == 200
        assert (await served.call("other.echo")).status_code == 200
        found = await scraped(served)
        assert found.value("health_check_error_rate", server="box") == 0.5
        assert found.value("health_check_error_rate", server="other") == 0
        shown = (await served.client().get(f"{SERVERS}/box")).json()
        assert shown["error_rate"] == 0.5, "it is what REST shows"


@pytest.mark.req("AG-US5-AC7")
async def test_checks_are_exported_as_they_end(gateway):
    served = await gateway(health_interval_ms=30, health_timeout_ms=1000)
    async with Toolbox() as server:
        url = server.url.replace("/mcp", "/health")
        await served.register("box", **far(server, health_check_url=url))

        def timed(found: Metrics) -> bool:
            return found.value("health_check_response_time_seconds", server="box") is not None

        found = await until(served, timed)
        now = Metrics(served.registry.metrics())  # and no check ends in between
        shown = served.registry.find("box").response_time_ms
        assert now.value("health_check_response_time_seconds", server="box") == shown / 1000 > 0
        assert found.value("health_check_healthy", server="box") == 1
        assert found.value("health_check_reachable", server="box") == 1
        server.health_status = 500
        await until(served, lambda f: f.value("health_check_healthy", server="box") == 0)


async def test_a_server_that_is_gone_is_not_reachable_and_has_no_response_time(gateway):
    served = await gateway(health_interval_ms=30, health_timeout_ms=1000)
    async with Toolbox() as server:
        await served.register("box", **far(server))
        await until(served, lambda f: f.labels("health_check_response_time_seconds") == ["box"])
        await server.stop()
        found = await until(served, lambda f: f.value("servers_total", status="ERROR") == 1)
        assert found.value("health_check_reachable", server="box") == 0
        assert found.labels("health_check_response_time_seconds") == []
        assert found.labels("health_check_error_rate") == ["box"]


async def test_servers_are_counted_by_status_and_those_nobody_wants_have_no_health(served):
    await served.register("peer")
    await served.client().post(SERVERS, json=registration("off", auto_connect=False))
    before = await until(served, lambda f: f.value("tools_total") > 0)
    assert before.value("servers_total", status="CONNECTED") == 1
    assert before.value("servers_total", status="DISCONNECTED") == 1
    assert before.value("servers_total", status="DEGRADED") == 0
    state = (await served.client().get("/api/v1/aggregator/state")).json()
    assert before.value("tools_total") == state["total_tools"]
    assert before.labels("health_check_healthy") == ["peer"]
    await served.client().post(f"{SERVERS}/peer/disconnect")
    after = await scraped(served)
    assert after.value("servers_total", status="DISCONNECTED") == 2
    assert [after.labels(f"health_check_{check}") for check in CHECKS] == [[], [], [], []]
    assert sum(v for (name, _), v in after.samples.items() if name.endswith("servers_total")) == 2
    await served.client().delete(f"{SERVERS}/peer")
    assert (await scraped(served)).value("servers_total", status="DISCONNECTED") == 1


async def test_sessions_and_what_the_audit_has_not_stored_are_counted(served, monkeypatch):
    assert (await scraped(served)).value("sessions") == 0
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
    hello["clientInfo"] = {"name": "t", "version": "1"}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    assert (await served.client().post("/mcp", json=asked)).status_code == 200
    await served.audit.flush()
    found = await scraped(served)
    assert found.value("sessions") == 1
    assert found.value("audit_rows_lost_total") == 0
    assert found.value("audit_rows_waiting") == 0
    assert found.types["mcp_aggregator_audit_rows_lost_total"] == "counter"
    monkeypatch.setattr(served.audit, "_most", 2)
    for _ in range(5):
        served.audit.record(Entry(kind="outcome", actor="t", action="t", at=0.0))
    found = Metrics(served.registry.metrics())  # before they are stored
    assert found.value("audit_rows_waiting") == 2
    assert found.value("audit_rows_lost_total") == 3


async def test_names_of_servers_cannot_break_the_text(gateway, tmp_path):
    names = ['a"} 1\nevil_total 2\n#', "back\\slash\\", "名前", "tab\there", "{=,}", "cr\r\nlf"]
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {name: stdio_config() for name in names}}), "utf-8")
    served = await gateway(load(str(path), {}, {}, lenient=True))
    found = await until(served, lambda f: f.value("servers_total", status="CONNECTED") == 6)
    assert found.labels("health_check_error_rate") == sorted(names)
    assert all(name.startswith("mcp_") for name in found.types)


async def test_no_more_servers_have_series_than_the_limit_and_the_rest_is_told(
    gateway, monkeypatch
):
    monkeypatch.setattr(metrics, "LABELLED", 2)
    served = await gateway()
    async with Toolbox() as server:
        for name in ("c", "b", "a"):
            await served.register(name, **far(server))
        found = await scraped(served)
        assert found.labels("health_check_error_rate") == ["b", "c"], "who came first stays"
        assert found.value("health_check_omitted_servers") == 1
        assert found.value("servers_total", status="CONNECTED") == 3


@pytest.mark.parametrize("role", [role for role in ROLES if role != "agent"])
async def test_every_role_but_an_agents_may_scrape(gateway, role):
    served = await gateway()
    answer = await served.client(role).get(METRICS)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    head = await served.client(role).head(METRICS)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 100


async def test_without_a_good_key_from_elsewhere_or_with_another_method_there_is_nothing(gateway):
    served = await gateway(only=("admin",))  # so that /mcp is open to everyone on this machine
    for headers in ({}, {"authorization": "Bearer jct_x_y"}, {"authorization": "Basic eDp5"}):
        answer = await served.client(None).get(METRICS, headers=headers)
        assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "mcp_aggregator" not in answer.text
    for given in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = await served.client().get(METRICS, headers=given)
        assert (answer.status_code, answer.json()["error_code"]) == (403, "FORBIDDEN")
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = await served.client().request(method, METRICS)
        assert (answer.status_code, answer.json()["error_code"]) == (405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"] == "GET, HEAD"
    for path in ("/metrics/", "/metrics/x", "/metricsx"):
        assert (await served.client().get(path)).status_code == 404
    key = next(one.id for one in await served.ring.all())
    await served.ring.revoke(key, "test")
    assert (await served.client().get(METRICS)).status_code == 401


async def test_it_waits_for_no_routes_and_is_there_while_junction_ends():
    def make():
        raise AssertionError("nobody has asked for a route")

    sent = []

    async def send(message):
        sent.append(message)

    front = RestFront(AnyKey(), make, lambda: b"x 1\n", [].append, AnyKey().refresh)
    front.drain()
    scope = {"path": METRICS, "raw_path": METRICS.encode(), "method": "GET"}
    await front({**scope, "headers": [(b"authorization", b"Bearer x")]}, None, send)
    assert (sent[0]["status"], sent[1]["body"]) == (200, b"x 1\n")
    assert front.app is None
