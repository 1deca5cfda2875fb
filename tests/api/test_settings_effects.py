"""Each of the integration seed's eleven settings has its effect in a running service.

A value that is not the default is set by its environment variable; what it changes is seen over
HTTP, beside what the default does.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import datetime
from types import SimpleNamespace

import pytest
from tests.audit.test_retention import written
from tests.http.peer_http import HttpPeer
from tests.plugin_rest import BOUND, serve_api

from mcp_junction.audit.maintenance import DAY, FIRST
from mcp_junction.cli.serve import _forget
from mcp_junction.cli.storage import Storage
from mcp_junction.config.load import without_file
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.vault.key_file import KeyFile

pytestmark = pytest.mark.req("REQ-MCP-CONFIG")
INVOKE = "/api/v1/mcp/invoke"
CIRCUITS = "/api/v1/mcp/circuit-breakers"
AUDIT = "/api/v1/mcp/audit"
TOOLS = "/api/v1/mcp/tools"
QUICK = {"MCP_RETRY_BASE_MS": "1", "MCP_CIRCUIT_FAILURE_THRESHOLD": "100"}
"""With these, a call that fails each time is over at once."""


class FailingPeer(HttpPeer):
    """Answers calls of tools with HTTP 500 while ``fails``."""

    fails = True

    async def _answer(self, visit) -> None:
        if visit.rpc == "tools/call" and self.fails:
            visit.answer(500)
        else:
            await super()._answer(visit)


class Effects:
    """A service with one server whose tool ``echo`` fails, and may be tried again."""

    def __init__(self, served, peer: FailingPeer) -> None:
        self.served = served
        self.peer = peer

    async def invoke(self, tool: str = "echo", role: str = "agent", **more):
        body = {"server_id": "peer", "tool_name": tool, **more}
        return await self.served.client(role).post(INVOKE, json=body)

    async def attempts(self, **more) -> int:
        """How often a call that fails is tried."""
        answer = await self.invoke(**more)
        assert answer.status_code == 500, answer.text
        assert answer.json()["error"]["type"] == "ToolInvocationError"
        return answer.json()["attempts"]

    async def circuit(self) -> dict:
        answer = await self.served.client().get(CIRCUITS, params={"tool_name": "echo"})
        (row,) = answer.json()
        return row


async def begin(served, stack: AsyncExitStack) -> Effects:
    peer = await stack.enter_async_context(FailingPeer())
    far = {"transport_type": "HTTP", "connection_config": {"url": peer.url}}
    await served.register("peer", **far)
    answer = await served.client().patch(f"{TOOLS}/peer/echo", json={"idempotent": True})
    assert answer.status_code == 200, answer.text
    return Effects(served, peer)


@pytest.fixture
async def effects(opener):
    """Start a service with these environment variables, on either store."""
    async with AsyncExitStack() as stack:

        async def start(**environ: str) -> Effects:
            return await begin(await serve_api(stack, opener, without_file(environ, {})), stack)

        yield start


@pytest.mark.req("REQ-MCP-CALL-002", "MCP_RETRY_MAX_ATTEMPTS")
@pytest.mark.parametrize(("attempts", "made"), [(None, 3), ("5", 5)])
async def test_retry_max_attempts_is_how_often_a_call_is_tried(effects, attempts, made):
    chosen = {} if attempts is None else {"MCP_RETRY_MAX_ATTEMPTS": attempts}
    assert await (await effects(**QUICK, **chosen)).attempts() == made


@pytest.mark.req("MCP_RETRY_BASE_MS")
@pytest.mark.parametrize(("base", "made"), [("1", 3), ("20000", 1)])
async def test_retry_base_ms_is_the_first_wait(effects, base, made):
    """A wait that would end after the deadline of the call is not begun."""
    service = await effects(MCP_RETRY_BASE_MS=base)
    assert await service.attempts(timeout_ms=10_000) == made


@pytest.mark.req("MCP_RETRY_FACTOR")
@pytest.mark.parametrize(("factor", "made"), [(None, 3), ("100", 2)])
async def test_retry_factor_makes_the_second_wait_longer(effects, factor, made):
    """After 0.2 s follow 0.4 s by default, and 20 s by the factor 100: after the deadline."""
    chosen = {} if factor is None else {"MCP_RETRY_FACTOR": factor}
    service = await effects(MCP_RETRY_BASE_MS="200", **chosen)
    assert await service.attempts(timeout_ms=10_000) == made


@pytest.mark.req("MCP_RETRY_MAX_DELAY_MS")
@pytest.mark.parametrize(("cap", "made"), [(None, 1), ("1", 3)])
async def test_retry_max_delay_ms_bounds_each_wait(effects, cap, made):
    chosen = {} if cap is None else {"MCP_RETRY_MAX_DELAY_MS": cap}
    service = await effects(MCP_RETRY_BASE_MS="60000", **chosen)
    assert await service.attempts(timeout_ms=10_000) == made


@pytest.mark.req("MCP_CIRCUIT_FAILURE_THRESHOLD")
@pytest.mark.parametrize(("threshold", "opens_after"), [(None, 5), ("2", 2)])
async def test_circuit_failure_threshold_is_when_a_circuit_opens(effects, threshold, opens_after):
    chosen = {} if threshold is None else {"MCP_CIRCUIT_FAILURE_THRESHOLD": threshold}
    service = await effects(MCP_RETRY_MAX_ATTEMPTS="1", **chosen)
    for failed in range(opens_after):
        assert failed == 0 or (await service.circuit())["state"] == "CLOSED"
        assert await service.attempts() == 1
    refused = await service.invoke()
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "CircuitOpenError")
    assert (await service.circuit())["state"] == "OPEN"


@pytest.mark.req("MCP_CIRCUIT_COOLDOWN")
@pytest.mark.parametrize(("cooldown", "seconds"), [(None, 60), ("7", 7)])
async def test_circuit_cooldown_is_how_long_it_stays_open(effects, cooldown, seconds):
    chosen = {} if cooldown is None else {"MCP_CIRCUIT_COOLDOWN": cooldown}
    service = await effects(MCP_RETRY_MAX_ATTEMPTS="1", MCP_CIRCUIT_FAILURE_THRESHOLD="1", **chosen)
    await service.attempts()
    row = await service.circuit()
    opened, retry = (datetime.fromisoformat(row[name]) for name in ("opened_at", "retry_at"))
    assert (retry - opened).total_seconds() == seconds
    refused = await service.invoke()
    assert 0 < int(refused.headers["retry-after"]) <= seconds


@pytest.mark.req("MCP_CIRCUIT_HALF_OPEN_MAX")
@pytest.mark.parametrize(("half_open", "state"), [(None, "HALF_OPEN"), ("1", "CLOSED")])
async def test_circuit_half_open_max_is_how_many_calls_have_to_succeed(effects, half_open, state):
    chosen = {} if half_open is None else {"MCP_CIRCUIT_HALF_OPEN_MAX": half_open}
    service = await effects(
        MCP_RETRY_MAX_ATTEMPTS="1",
        MCP_CIRCUIT_FAILURE_THRESHOLD="1",
        MCP_CIRCUIT_COOLDOWN="1",
        **chosen,
    )
    await service.attempts()
    service.peer.fails = False
    async with asyncio.timeout(BOUND):
        while (await service.invoke()).status_code != 200:  # noqa: ASYNC110 - the cooldown has to pass
            await asyncio.sleep(0.1)
    assert (await service.circuit())["state"] == state


@pytest.mark.req("MCP_AUTH_CACHE_TTL")
@pytest.mark.parametrize(("ttl", "cached"), [(None, [False, True]), ("0", [False, False])])
async def test_auth_cache_ttl_is_how_long_a_decision_is_remembered(effects, ttl, cached):
    chosen = {} if ttl is None else {"MCP_AUTH_CACHE_TTL": ttl}
    service = await effects(**chosen)
    service.peer.fails = False
    for _ in range(2):
        assert (await service.invoke()).status_code == 200
    await service.served.audit.flush()
    answer = await service.served.client().get(AUDIT, params={"tool_name": "echo"})
    rows = [row for row in answer.json() if row["kind"] == "call"]
    assert [row["cached"] for row in reversed(rows)] == cached


@pytest.mark.req("MCP_INVOCATION_TIMEOUT_MS")
async def test_invocation_timeout_ms_ends_an_attempt(effects):
    service = await effects(MCP_INVOCATION_TIMEOUT_MS="300", MCP_RETRY_MAX_ATTEMPTS="1")
    service.peer.fails = False
    late = await service.invoke("hold")
    assert (late.status_code, late.json()["error"]["type"]) == (504, "TimeoutError")
    assert late.json()["delivery"] == "unknown"


@pytest.mark.req("MCP_AUDIT_RETENTION_DAYS")
@pytest.mark.parametrize(("days", "kept"), [(None, True), ("7", False), ("0", True)])
async def test_audit_retention_days_is_how_long_rows_are_kept(opener, tmp_path, days, kept):
    environ = {} if days is None else {"MCP_AUDIT_RETENTION_DAYS": days}
    config = without_file(environ, {})
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, config)
        store, clock = served.registry._context.store, FakeClock()
        writer = await written(opener, store, time.time() - 30 * DAY, 3)
        storage = Storage(store, opener.vault, tmp_path / "data", KeyFile({}, tmp_path / "data"))
        host = SimpleNamespace(clock=clock, tasks=served.junction.tasks)
        _forget(config.settings.audit_retention_days, storage, served.audit, host)
        await clock.advance(FIRST)
        old = {"agent_id": "ann"}
        async with asyncio.timeout(BOUND):
            while not kept and (await served.client().get(AUDIT, params=old)).json():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        left = (await served.client().get(AUDIT, params=old)).json()
        assert bool(left) is kept
        assert (writer in await store.audit.chains()) is kept


@pytest.mark.req("MCP_TOKEN_TTL_MINUTES")
@pytest.mark.parametrize(("minutes", "seconds"), [(None, 900), ("1", 60)])
async def test_token_ttl_minutes_is_how_long_a_token_is_good_for(opener, minutes, seconds):
    environ = {} if minutes is None else {"MCP_TOKEN_TTL_MINUTES": minutes}
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, without_file(environ, {}))
        body = {"agent_id": "bot", "server_id": "*", "tool_name": "delete_*"}
        given = await served.client().post("/api/v1/mcp/policies/grant", json=body)
        assert given.status_code == 201, given.text
        grant = given.json()
        ends = datetime.fromisoformat(grant["token_expires_at"])
        assert (ends - datetime.fromisoformat(grant["granted_at"])).total_seconds() == seconds
        (kept,) = (await served.client().get("/api/v1/mcp/policies/bot")).json()
        assert (kept["token_ttl"], kept["token_expires_at"]) == (seconds, grant["token_expires_at"])
        body["token_ttl"] = 7
        again = (await served.client().post("/api/v1/mcp/policies/grant", json=body)).json()
        assert again["token_ttl"] == 7, "the grant's own goes first"
