"""``POST /api/v1/mcp/invoke``: the seed's bodies, and each row of its error table."""

import asyncio
import itertools
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.plugin_rest import Served, serve_api
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.policy.grants import Grant
from mcp_junction.policy.tokens import Token, TokenMode, hash_secret, write_token
from mcp_junction.store.grants import AgentRecord

INVOKE = "/api/v1/mcp/invoke"
CALL = "/api/v1/tools/call"
SERVERS = "/api/v1/aggregator/servers"
NOTE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "stars": {"type": "integer"}},
    "required": ["title"],
}
TOOLS = [
    tool("echo"),
    tool("hidden"),
    tool("note", inputSchema=NOTE),
    tool("delete_it"),
]
_ids = itertools.count(1)
VARYING = ("correlation_id", "latency_ms", "completed_at")


class Governed:
    """A gateway in which grants decide, with a server named ``box``."""

    def __init__(self, served: Served, box: Toolbox) -> None:
        self.served = served
        self.box = box
        self.server_id = ""

    async def register(self) -> None:
        body = {"name": "box", "transport_type": "HTTP", "connection_config": {"url": self.box.url}}
        answer = await self.served.client().post(SERVERS, json=body)
        assert answer.status_code == 201, answer.text
        self.server_id = answer.json()["id"]
        await self.served.until("box", "CONNECTED")

    async def grant(self, pattern: str, agent: str = "the-agent", **terms: Any) -> str:
        """Give a grant; return the text of its token, if its mode has one."""
        mode = terms.pop("token_mode", TokenMode.NONE)
        now, number = time.time(), next(_ids)
        given = Grant(f"g{number}", agent, "*", pattern, granted_at=now, token_mode=mode, **terms)
        token = Token(f"t{number}", given.id, hash_secret("s"), now, now + 900)
        store = self.served.registry._context.store
        made = None if mode is TokenMode.NONE else token
        await store.policy.grant(given, AgentRecord(agent), lambda _: made)
        await self.served.junction.governance.sync.refresh(agent)
        return write_token(token.id, "s")

    async def invoke(self, tool: str = "echo", role: str = "agent", headers=None, **more: Any):
        body = {"server_id": "box", "tool_name": tool, "params": {}, **more}
        return await self.served.client(role).post(INVOKE, json=body, headers=headers)

    async def fails(self, status: int, kind: str, *given: Any, **more: Any) -> dict[str, Any]:
        """Invoke, and check the error; return its body."""
        answer = await self.invoke(*given, **more)
        told = answer.json()
        assert (answer.status_code, told["error"]["type"]) == (status, kind), answer.text
        assert told["success"] is False
        assert told["result"] is None
        assert told["correlation_id"] == answer.headers["x-correlation-id"]
        assert "www-authenticate" not in answer.headers
        return told


@pytest.fixture
async def governed(opener):
    """Make gateways over each kind of store."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Governed:
            box = await stack.enter_async_context(Toolbox(TOOLS))
            served = await serve_api(stack, opener, grants=False, **settings)
            made = Governed(served, box)
            await made.register()
            return made

        yield start


# -- what is answered


@pytest.mark.req("REQ-MCP-CALL-001", "MCP-POST-invoke")
async def test_the_seeds_request_is_answered_with_the_seeds_response(governed):
    gateway = await governed()
    await gateway.grant("echo")
    answer = await gateway.invoke(
        correlation_id="req-12345",
        agent_id="the-agent",
        params={"query": "Python async patterns", "limit": 5},
        idempotency_key="idemp-67890",
        ticket_id="ticket-abc",
        task_id="task-xyz",
    )
    told = answer.json()
    assert answer.status_code == 200, answer.text
    assert list(told) == [
        "correlation_id",
        "success",
        "result",
        "error",
        "attempts",
        "latency_ms",
        "delivery",
        "completed_at",
    ]
    assert (told["correlation_id"], told["success"], told["error"]) == ("req-12345", True, None)
    assert (told["attempts"], told["delivery"]) == (1, "executed")
    seen = json.loads(told["result"]["content"][0]["text"])
    assert seen == {"query": "Python async patterns", "limit": 5}
    assert answer.headers["x-correlation-id"] == "req-12345"


async def test_a_tools_own_error_is_an_answer(governed):
    gateway = await governed()
    await gateway.grant("echo")
    gateway.box.says = {"isError": True, "extra": {"kept": 1.0}}
    answer = await gateway.invoke()
    told = answer.json()
    assert (answer.status_code, told["success"], told["error"]) == (200, False, None)
    assert told["result"]["extra"] == {"kept": 1.0}
    assert told["correlation_id"]


# -- the error table, row by row


@pytest.mark.req("REQ-MCP-CALL-001", "MCP-400-BadRequestError")
async def test_400_for_a_bad_request(governed):
    gateway = await governed()
    await gateway.grant("*")
    told = await gateway.fails(400, "BadRequestError", "note", params={"stars": "x"})
    assert {error["path"] for error in told["errors"]} == {"", "/stars"}
    assert told["delivery"] == "not_sent"
    client = gateway.served.client("agent")
    bad = [
        {},
        {"server_id": "box"},
        {"server_id": "box", "tool_name": "echo", "unknown": 1},
        {"server_id": "box", "tool_name": "echo", "params": [1]},
        {"server_id": "box", "tool_name": "echo", "token": "nonsense"},
        {"server_id": "box", "tool_name": "echo", "timeout_ms": 0},
        {"server_id": "box", "tool_name": "echo", "idempotency_key": ""},
        {"server_id": "box", "tool_name": "echo", "correlation_id": "a b"},
    ]
    for body in bad:
        answer = await client.post(INVOKE, json=body)
        assert answer.status_code == 400, (body, answer.text)
        assert answer.json()["error"]["type"] == "BadRequestError"
        assert "nonsense" not in answer.text
    twice = b'{"server_id":"box","tool_name":"echo","params":{"a":1,"a":2}}'
    json_type = {"content-type": "application/json"}
    answer = await client.post(INVOKE, content=twice, headers=json_type)
    assert answer.status_code == 400, answer.text
    assert gateway.box.calls == 0


@pytest.mark.req("REQ-MCP-AUTH-001", "MCP-401-AuthorizationError")
async def test_401_for_a_denied_call_and_the_same_for_an_unknown_one(governed):
    gateway = await governed()
    await gateway.grant("echo")
    hidden = await gateway.fails(401, "AuthorizationError", "hidden")
    unknown = await gateway.fails(401, "AuthorizationError", "nosuch")
    away = await gateway.fails(401, "AuthorizationError", "hidden", server_id="nobox")
    for body in (hidden, unknown, away):
        for name in VARYING:
            del body[name]
    assert json.dumps(hidden).replace("hidden", "nosuch") == json.dumps(unknown)
    assert json.dumps(away).replace("nobox", "box") == json.dumps(hidden)
    told = await gateway.fails(401, "AuthorizationError", "echo", agent_id="somebody")
    assert "another agent" in told["error"]["message"]
    assert gateway.box.calls == 0


@pytest.mark.req("MCP-401-AuthorizationError", "MCP-404-ToolNotFoundError")
async def test_401_and_404_for_those_who_act_for_an_agent(governed):
    gateway = await governed()
    await gateway.grant("echo", "ann")
    for role in ("admin", "orchestrator"):
        assert (await gateway.invoke("echo", role, agent_id="ann")).json()["success"]
        told = await gateway.fails(401, "AuthorizationError", "hidden", role, agent_id="ann")
        assert "no grant of agent 'ann'" in told["error"]["message"]
        await gateway.fails(404, "ToolNotFoundError", "nosuch", role, agent_id="ann")
        await gateway.fails(404, "ToolNotFoundError", "echo", role, agent_id="ann", server_id="no")
    assert (await gateway.invoke("hidden", "admin")).json()["success"]


async def test_403_for_a_role_that_may_not_call_so(governed):
    gateway = await governed()
    told = await gateway.fails(403, "ForbiddenError", "echo", "orchestrator")
    assert "name one as agent_id" in told["error"]["message"]
    answer = await gateway.invoke("echo", "viewer")
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenError")


async def test_401_without_a_key_asks_for_one(governed):
    gateway = await governed()
    answer = await gateway.invoke("echo", None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.req("REQ-MCP-AUTH-003", "MCP-401-AuthorizationError")
async def test_401_for_a_high_risk_tool_without_its_token(governed):
    gateway = await governed()
    text = await gateway.grant("delete_*", token_mode=TokenMode.SINGLE_USE)
    told = await gateway.fails(401, "AuthorizationError", "delete_it")
    assert "carries no token" in told["error"]["message"]
    tries = [gateway.invoke("delete_it", token=text) for _ in range(10)]
    statuses = [answer.status_code for answer in await asyncio.gather(*tries)]
    assert sorted(statuses) == [200] + [401] * 9
    assert gateway.box.calls == 1
    listed = await gateway.served.call("box.delete_it", role="agent")
    assert (listed.status_code, listed.json()["error_code"]) == (403, "DENIED")


@pytest.mark.req("MCP-409-ToolDisabledError")
async def test_409_for_a_disabled_tool_after_authorization(governed):
    gateway = await governed()
    await gateway.grant("echo")
    for name in ("echo", "hidden"):
        path = f"/api/v1/mcp/tools/box/{name}"
        changed = await gateway.served.client().patch(path, json={"enabled": False})
        assert changed.status_code == 200, changed.text
    await gateway.fails(409, "ToolDisabledError", "echo")
    await gateway.fails(401, "AuthorizationError", "hidden")
    await gateway.fails(409, "ToolDisabledError", "hidden", "admin")
    await gateway.fails(401, "AuthorizationError", "hidden", "admin", agent_id="the-agent")


@pytest.mark.req("REQ-MCP-CALL-003")
async def test_409_for_an_idempotency_key_with_other_arguments(governed):
    gateway = await governed()
    await gateway.grant("echo")
    first = await gateway.invoke(params={"a": 1}, idempotency_key="k")
    again = await gateway.invoke(params={"a": 1}, headers={"idempotency-key": "k"})
    assert first.json()["result"] == again.json()["result"]
    assert gateway.box.calls == 1
    await gateway.fails(409, "IdempotencyConflictError", params={"a": 2}, idempotency_key="k")


@pytest.mark.req("J-LIMIT", "MCP-429-RateLimitError")
async def test_429_with_the_time_to_wait(governed):
    gateway = await governed(limit_tool="1/1000")
    await gateway.grant("*")
    assert (await gateway.invoke()).status_code == 200
    answer = await gateway.invoke()
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "RateLimitError")
    assert 900 < int(answer.headers["retry-after"]) <= 1_000
    assert answer.json()["delivery"] == "not_sent"
    over_rest = await gateway.served.call("box.echo", role="agent")
    assert (over_rest.status_code, over_rest.json()["error_code"]) == (429, "RATE_LIMITED")
    assert int(over_rest.headers["retry-after"]) > 900


@pytest.mark.req("MCP-500-ToolInvocationError")
async def test_500_for_a_call_that_failed_at_its_server(governed):
    gateway = await governed(retry_max_attempts=1)
    await gateway.grant("*")
    gateway.box.gate.clear()
    running = asyncio.ensure_future(gateway.fails(500, "ToolInvocationError"))
    await gateway.served.busy()
    await gateway.box.stop()
    told = await running
    assert told["delivery"] == "unknown"
    assert told["attempts"] == 1


async def test_503_for_a_server_that_is_away(governed):
    gateway = await governed()
    await gateway.grant("*")
    await gateway.served.client().post(f"{SERVERS}/box/disconnect")
    told = await gateway.fails(503, "ServerUnavailableError")
    assert told["delivery"] == "not_sent"
    await gateway.fails(503, "ServerUnavailableError", "echo", "admin")
    await gateway.fails(404, "ToolNotFoundError", "nosuch", "admin")


@pytest.mark.req("REQ-MCP-CALL-005", "MCP-503-CircuitOpenError", "MCP-504-TimeoutError")
async def test_504_for_an_attempt_out_of_time_and_503_for_the_open_circuit(governed):
    gateway = await governed(
        invocation_timeout_ms=100, retry_max_attempts=1, circuit_failure_threshold=1
    )
    await gateway.grant("*")
    gateway.box.gate.clear()
    told = await gateway.fails(504, "TimeoutError")
    assert told["delivery"] == "unknown"
    told = await gateway.fails(503, "CircuitOpenError")
    assert told["delivery"] == "not_sent"


@pytest.mark.req("MCP-504-TimeoutError")
@pytest.mark.parametrize("place", ["body", "header"])
async def test_504_when_the_callers_own_time_is_over(governed, place):
    gateway = await governed()
    await gateway.grant("*")
    gateway.box.gate.clear()
    given = {"timeout_ms": 100} if place == "body" else {"headers": {"x-timeout-ms": "100"}}
    told = await gateway.fails(504, "TimeoutError", **given)
    assert "0.1 s" in told["error"]["message"]


# -- what a call carries, over the other route


async def test_headers_work_on_the_other_route_too(governed):
    gateway = await governed()
    await gateway.grant("echo", "ann")
    client = gateway.served.client("orchestrator")
    headers = {"x-agent-id": "ann", "x-correlation-id": "mine-1", "idempotency-key": "k"}
    for _ in range(2):
        answer = await client.post(CALL, json={"name": "box.echo"}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-correlation-id"] == "mine-1"
    assert gateway.box.calls == 1
    nobody = await client.post(CALL, json={"name": "box.echo"})
    assert nobody.status_code == 403
    denied = await client.post(CALL, json={"name": "box.hidden"}, headers=headers)
    assert denied.status_code == 403
    hidden = await gateway.served.call("box.hidden", role="agent")
    unknown = await gateway.served.call("box.nosuch", role="agent")
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.text.replace("hidden", "nosuch") == unknown.text
    client_of_agent = gateway.served.client("agent")
    twice = [("x-agent-id", "a"), ("x-agent-id", "b")]
    answer = await client_of_agent.post(CALL, json={"name": "box.echo"}, headers=twice)
    assert answer.status_code == 422


async def test_a_body_and_a_header_must_say_the_same(governed):
    gateway = await governed()
    await gateway.grant("echo")
    answer = await gateway.invoke(correlation_id="one", headers={"x-correlation-id": "two"})
    assert answer.status_code == 400
    assert "two" not in answer.text
