"""Approvals over three services on one PostgreSQL, each a process: one of fifty callers passes."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.api.mcp_client import ACCEPTED, HELLO, META, NEWER, frame
from tests.credentials.test_real_processes import BOUND, on_postgres, serving
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.credentials.kinds import LEASE

pytestmark = [on_postgres, pytest.mark.timeout(300)]
MCP = "/api/v1/mcp"
ARGS = {"path": "/tmp/a"}
PARAMS = {"name": "box.delete", "arguments": ARGS}
CALLERS = 50
WIDE = httpx.Limits(max_connections=CALLERS)
CODES = {-32007: "ApprovalRequired", -32004: "AuthorizationError"}
"""What those are told that come too late: to have another approved, or that this one was used."""


class Caller:
    """The agent at one of the services."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", **ACCEPTED}
        self.http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=BOUND, trust_env=False, limits=WIDE
        )
        self.session = ""
        self._sent = 0

    async def greet(self) -> None:
        answer = await self.http.post("/mcp", json=frame("initialize", HELLO))
        self.session = answer.headers["mcp-session-id"]

    async def invoke(self) -> dict:
        body = {"server_id": "box", "tool_name": "delete", "params": ARGS}
        return (await self.http.post(f"{MCP}/invoke", json=body)).json()

    async def call(self) -> dict:
        return await self._send(PARAMS, {"mcp-session-id": self.session})

    async def call_stateless(self) -> dict:
        own = {"mcp-protocol-version": NEWER, "mcp-method": "tools/call", "mcp-name": "box.delete"}
        return await self._send({**PARAMS, "_meta": META}, own)

    async def _send(self, params: dict, headers: dict) -> dict:
        self._sent += 1
        message = frame("tools/call", params, self._sent)
        return (await self.http.post("/mcp", json=message, headers=headers)).json()

    async def until_asked(self) -> str:
        """Wait until the service knows server and grant; the id of the request for approval."""
        async with asyncio.timeout(BOUND):
            while True:
                told = await self.invoke()
                if "approval_id" in told:
                    return told["approval_id"]
                await asyncio.sleep(0.05)


def read_refusal(answer: dict) -> str | None:
    """What was refused, by the names of the REST errors; None for a call that has run."""
    error = answer.get("error")
    if error is None:
        assert "result" in answer, answer
        return None
    return error["type"] if "type" in error else CODES[error["code"]]


@pytest.fixture
async def box():
    async with Toolbox([tool("delete")]) as made:
        yield made


@pytest.fixture
async def world(box, store_url, tmp_path):
    """Three services, and the agent's clients of them."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"box": {"url": box.url}}}))
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(serving(config, store_url, tmp_path / name, LEASE))
            for name in "abc"
        ]
        agent = {"agent_id": "the-agent", "create_key": True}
        made = await services[0].client.post(f"{MCP}/agents", json=agent)
        assert made.status_code == 201, made.text
        grant = {"agent_id": "the-agent", "server_id": "box", "tool_name": "delete"}
        given = await services[1].client.post(
            f"{MCP}/policies/grant", json={**grant, "token_mode": "approval"}
        )
        assert given.status_code == 201, given.text
        callers = [Caller(str(one.client.base_url), made.json()["key"]) for one in services]
        for one in callers:
            await stack.enter_async_context(one.http)
        yield services, callers


async def race(callers: list[Caller]) -> Counter[str | None]:
    """Make the call fifty times at once, at all services and in all ways; what became of it."""
    ways = [way for one in callers for way in (one.invoke, one.call, one.call_stateless)]
    answers = await asyncio.gather(*(ways[n % len(ways)]() for n in range(CALLERS)))
    return Counter(map(read_refusal, answers))


@pytest.mark.req("P-3")
async def test_of_fifty_callers_of_three_services_one_passes(box, world):
    services, callers = world
    asked = {await one.until_asked() for one in callers}
    assert len(asked) == 1, "it is one request, wherever the call is made"
    for one in callers:
        await one.greet()

    async def approve(caller: Caller, admin: httpx.AsyncClient) -> None:
        answer = await admin.post(f"{MCP}/approvals/{await caller.until_asked()}/approve", json={})
        assert answer.status_code == 200, answer.text

    await approve(callers[0], services[2].client)
    told = await race(callers)
    assert (told[None], box.calls) == (1, 1), told
    assert set(told) <= {None, *CODES.values()}
    await approve(callers[0], services[1].client)
    services[0].kill()  # which had made the request
    told = await race(callers[1:])
    assert (told[None], box.calls) == (1, 2), told
    assert set(told) <= {None, *CODES.values()}
    shown = await services[1].client.get(f"{MCP}/approvals", params={"pending": False})
    assert [one["state"] for one in shown.json()].count("used") == 2
