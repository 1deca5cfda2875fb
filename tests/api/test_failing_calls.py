"""What becomes of a governed call that fails, over HTTP: retries, fallbacks, circuits, keys."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.plugin_rest import Served, serve_api
from tests.registry.toolbox import Toolbox, tool

MCP = "/api/v1/mcp"


class FaultyBox(Toolbox):
    """A server with the tools ``echo`` and ``other``, whose calls end with ``fault`` if it is set.

    An HTTP status, or a JSON-RPC error under the status 200.
    """

    def __init__(self) -> None:
        super().__init__([tool("echo"), tool("other")])
        self.fault: int | dict[str, Any] | None = None

    async def _answer(self, method: str, params: dict) -> tuple[int, dict]:
        status, answer = await super()._answer(method, params)
        if method != "tools/call" or self.fault is None:
            return status, answer
        if isinstance(self.fault, int):
            return self.fault, {"error": {"code": -32603, "message": "it failed"}}
        return 200, {"error": self.fault}


class Gateway:
    """A gateway in which the-agent may do what it is granted, and its servers."""

    def __init__(self, stack: AsyncExitStack, served: Served) -> None:
        self.stack = stack
        self.served = served
        self.client = served.client()

    async def add(self, name: str, *granted: str) -> FaultyBox:
        """Register a server; grant these tools of it; let ``echo`` be tried again."""
        box = await self.stack.enter_async_context(FaultyBox())
        reached = {"url": box.url}
        await self.served.register(name, transport_type="HTTP", connection_config=reached)
        await self.set(f"{name}/echo", idempotent=True)
        for pattern in granted:
            body = {"agent_id": "the-agent", "server_id": name, "tool_name": pattern}
            answer = await self.client.post(f"{MCP}/policies/grant", json=body)
            assert answer.status_code == 201, answer.text
        return box

    async def set(self, place: str, **fields: Any) -> None:
        answer = await self.client.patch(f"{MCP}/tools/{place}", json=fields)
        assert answer.status_code == 200, answer.text

    async def invoke(self, server: str = "one", **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"server_id": server, "tool_name": "echo", **more}
        answer = await self.served.client("agent").post(f"{MCP}/invoke", json=body)
        return answer.status_code, answer.json()


@pytest.fixture
async def start(opener):
    """Starts gateways over one store, each kind in turn; one ends before the next begins."""
    async with AsyncExitStack() as boxes, AsyncExitStack() as running:

        async def make(**settings: Any) -> Gateway:
            await running.aclose()
            quick = {"retry_base_ms": 1, **settings}
            return Gateway(boxes, await serve_api(running, opener, grants=False, **quick))

        yield make


@pytest.mark.req("REQ-MCP-CALL-002", "MCP-500-ToolInvocationError")
@pytest.mark.parametrize(
    ("fault", "tries"),
    [
        pytest.param(500, 3, id="transient"),
        pytest.param(400, 1, id="bad-request"),
        pytest.param({"code": -32602, "message": "no such argument"}, 1, id="refused"),
    ],
)
async def test_a_transient_failure_is_tried_three_times_and_a_permanent_one_once(
    start, fault, tries
):
    gateway = await start()
    box = await gateway.add("one", "*")
    box.fault = fault
    status, told = await gateway.invoke()
    assert (told["success"], told["attempts"], box.calls) == (False, tries, tries), told
    assert (status, told["error"]["type"]) == (500, "ToolInvocationError")


@pytest.mark.req("REQ-MCP-CALL-004", "R-FALLBACK")
async def test_fallbacks_are_tried_in_order_as_far_as_they_are_granted_and_then_it_escalates(start):
    gateway = await start(retry_max_attempts=1)
    first, denied = await gateway.add("one", "echo"), await gateway.add("two")
    second, third = await gateway.add("three", "other"), await gateway.add("four", "other")
    targets = [{"server_id": name, "tool_name": "other"} for name in ("two", "three", "four")]
    targets[2]["arguments"] = {"text": "/q", "limit": {"value": 5}}
    await gateway.set("one/echo", fallbacks=targets)
    first.fault = second.fault = 503
    status, told = await gateway.invoke(params={"q": "x"})
    assert (status, second.calls, third.calls) == (500, 1, 0), "the second is not idempotent"
    await gateway.set("three/other", idempotent=True)
    status, told = await gateway.invoke(params={"q": "x"})
    assert (status, told["success"], told["attempts"]) == (200, True, 3), told
    assert b'"text":"x"' in third.bodies[-1].replace(b" ", b"")
    assert denied.calls == 0, "the agent has no grant for it"
    third.fault = 503
    status, told = await gateway.invoke(params={"q": "x"}, correlation_id="all-failed")
    assert (status, told["success"]) == (500, False)
    (record,) = (await gateway.client.get(f"{MCP}/escalations")).json()
    assert (record["server_id"], record["tool_name"]) == ("one", "echo")
    assert (record["agent_id"], record["correlation_id"]) == ("the-agent", "all-failed")


@pytest.mark.req("REQ-MCP-CALL-005", "MCP-503-CircuitOpenError", "MCP-GET-circuit-breakers")
async def test_an_open_circuit_is_still_open_after_a_restart(start):
    gateway = await start(circuit_failure_threshold=2, retry_max_attempts=2)
    box = await gateway.add("one", "echo")
    box.fault = 500
    assert (await gateway.invoke())[0] == 500
    (before,) = await circuits(gateway)
    assert (before["state"], before["failure_count"]) == ("OPEN", 2)
    gateway = await start(circuit_failure_threshold=2)
    await gateway.served.until("one", "CONNECTED")
    assert await circuits(gateway) == [before]
    status, told = await gateway.invoke()
    assert (status, told["error"]["type"]) == (503, "CircuitOpenError")
    assert (told["delivery"], box.calls) == ("not_sent", 2)
    reset = await gateway.client.post(f"{MCP}/circuit-breakers/one/echo/reset")
    assert reset.status_code == 200
    box.fault = None
    assert (await gateway.invoke())[0] == 200


async def circuits(gateway: Gateway) -> list[dict[str, Any]]:
    place = {"server_id": "one", "tool_name": "echo"}
    return (await gateway.client.get(f"{MCP}/circuit-breakers", params=place)).json()


@pytest.mark.req("REQ-MCP-CALL-003", "R-IDEMPOTENCY")
async def test_an_idempotency_key_gives_the_first_answer_also_after_a_restart(start):
    gateway = await start()
    box = await gateway.add("one", "echo")
    kept = {"idempotency_key": "k", "params": {"a": 1}}
    status, first = await gateway.invoke(**kept)
    assert status == 200
    gateway = await start()
    await gateway.served.until("one", "CONNECTED")
    status, again = await gateway.invoke(**kept)
    assert (status, again["result"], box.calls) == (200, first["result"], 1)
    status, other = await gateway.invoke(idempotency_key="k", params={"a": 2})
    assert (status, other["error"]["type"]) == (409, "IdempotencyConflictError")
