"""R-REVOKE on the less trodden ways: tasks, fallbacks, ``call_tool`` and completions; and what goes
to no other server."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.api.mcp_client import ERAS, META, NEWER, client_of, frame, last_frame, post
from tests.http.origin import Origin, Visit
from tests.plugin_rest import SERVERS, Served, serve_api
from tests.registry.toolbox import BOUND, until

from mcp_junction.protocol.versions import DENIED

MCP = "/api/v1/mcp"
SCHEMA = {"type": "object"}


class Worker:
    """A server of the newer era: ``job`` becomes a task, ``ask`` asks, ``fail`` fails, and
    ``wait`` is answered when the test says so."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.seen: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, visit: Visit) -> None:
        params = visit.message.get("params", {})
        self.seen.append((visit.rpc, params))
        if visit.headers.get("mcp-protocol-version") != NEWER:
            visit.answer(400)
        elif visit.rpc == "server/discover":
            able = {"tools": {}, "prompts": {}, "completions": {}}
            visit.result({"supportedVersions": [NEWER], "capabilities": able})
        elif visit.rpc == "tools/list":
            names = ("job", "ask", "fail", "wait")
            visit.result({"tools": [{"name": name, "inputSchema": SCHEMA} for name in names]})
        elif visit.rpc == "prompts/list":
            visit.result({"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]})
        elif visit.rpc == "tools/call":
            await self.call(visit, params)
        elif visit.rpc.startswith("tasks/"):
            visit.result({"resultType": "complete", "taskId": "t-1", "status": "working"})
        elif visit.rpc == "completion/complete":
            visit.result({"resultType": "complete", "completion": {"values": ["you"]}})
        else:
            visit.answer(405)

    async def call(self, visit: Visit, params: dict[str, Any]) -> None:
        match params["name"]:
            case "job":
                visit.result({"resultType": "task", "taskId": "t-1", "status": "working"})
            case "ask" if "inputResponses" not in params:
                asked = {"method": "elicitation/create", "params": {"message": "?"}}
                state = {"requestState": "state of the first", "inputRequests": {"q": asked}}
                visit.result({"resultType": "input_required", **state})
            case "fail":
                visit.answer(500)
            case _:
                if params["name"] == "wait":
                    await self.answers.wait()
                visit.result({"resultType": "complete", "content": []})

    def count(self, method: str) -> int:
        return sum(rpc == method for rpc, _ in self.seen)

    @property
    def asked_of_tasks(self) -> int:
        return sum(rpc.startswith("tasks/") for rpc, _ in self.seen)


class Place:
    """A gateway with workers; nobody is granted anything."""

    def __init__(self, stack: AsyncExitStack, served: Served) -> None:
        self.stack = stack
        self.served = served

    async def add(self, name: str) -> Worker:
        worker = Worker()
        origin = await self.stack.enter_async_context(Origin(worker))
        self.stack.callback(worker.answers.set)
        url = {"url": origin.url}
        await self.served.register(name, transport_type="HTTP", connection_config=url)
        return worker

    async def grant(self, pattern: str, server: str = "far", **more: Any) -> str:
        body = {"agent_id": "the-agent", "server_id": server, "tool_name": pattern, **more}
        answer = await self.served.client().post(f"{MCP}/policies/grant", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    async def revoke(self, grant_id: str) -> None:
        answer = await self.served.client().delete(f"{MCP}/policies/{grant_id}")
        assert answer.status_code == 204

    async def ask(self, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request of the agent in the newer era."""
        able = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        given = frame(method, {**params, "_meta": {**META, **able}})
        headers = {"mcp_protocol_version": NEWER, "mcp_method": method, "mcp_name": name}
        return last_frame(await post(self.served, "agent", given, **headers))


@pytest.fixture
async def place(opener):
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, grants=False)
        yield Place(stack, served)


def error_of(answer: dict[str, Any]) -> tuple[int, str]:
    return answer["error"]["code"], answer["error"]["message"]


@pytest.mark.req("R-REVOKE")
async def test_a_task_is_unknown_once_the_grant_of_its_call_is_revoked(place):
    worker = await place.add("far")
    mine = await place.grant("job")
    kept = await place.grant("wait")
    made = await place.ask("tools/call", "far.job", {"name": "far.job", "arguments": {}})
    task = made["result"]["taskId"]
    assert task != "t-1"
    known = await place.ask("tasks/get", task, {"taskId": task})
    assert known["result"]["taskId"] == task
    await place.revoke(mine)
    before = worker.asked_of_tasks
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        late = await place.ask(method, task, {"taskId": task})
        unknown = await place.ask(method, "t-2", {"taskId": "t-2"})
        assert error_of(late) == error_of(unknown), method
    assert worker.asked_of_tasks == before
    await place.revoke(kept)


@pytest.mark.req("R-REVOKE", "R-FALLBACK")
async def test_a_fallback_ends_with_the_grant_of_its_target_and_is_not_taken_again(place):
    await place.add("far")
    spare = await place.add("spare")
    await place.grant("fail")
    mine = await place.grant("wait", "spare")
    target = {"server_id": "spare", "tool_name": "wait"}
    path = f"{MCP}/tools/far/fail"
    answer = await place.served.client().patch(path, json={"fallbacks": [target]})
    assert answer.status_code == 200, answer.text
    body = {"agent_id": "the-agent", "server_id": "far", "tool_name": "fail", "params": {}}
    # It fails before it is sent: after "unknown" nothing else is tried.
    assert (await place.served.client().post(f"{SERVERS}/far/disconnect")).status_code == 200
    client = place.served.client("agent")
    running = asyncio.create_task(client.post(f"{MCP}/invoke", json=body))
    await until(lambda: spare.count("tools/call") == 1)
    await place.revoke(mine)
    ended = await asyncio.wait_for(running, BOUND)
    assert (ended.status_code, ended.json()["error"]["type"]) == (401, "AuthorizationError")
    assert (await client.post(f"{MCP}/invoke", json=body)).status_code == 503
    assert spare.count("tools/call") == 1


@pytest.mark.req("R-REVOKE")
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_through_call_tool_ends_with_the_grant_of_what_it_calls(opener, era):
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, grants=False, exposure="search")
        await revoke_through_call_tool(Place(stack, served), era)


async def revoke_through_call_tool(place, era):
    worker = await place.add("far")
    mine = await place.grant("wait")
    await place.grant("job")
    client = await client_of(era).open(place.served, "agent")
    through = {"name": "call_tool", "arguments": {"name": "far.wait", "arguments": {}}}
    running = asyncio.create_task(client.send("tools/call", through))
    await until(lambda: worker.count("tools/call") == 1)
    await place.revoke(mine)
    answer = await asyncio.wait_for(running, BOUND)
    assert error_of(answer)[0] == DENIED
    assert answer["error"]["data"]["delivery"] == "unknown"
    again = await client.send("tools/call", through)
    assert "far.wait" in str(again)
    assert worker.count("tools/call") == 1


@pytest.mark.req("R-REVOKE")
@pytest.mark.parametrize("era", ERAS)
async def test_completions_end_with_the_grant_of_what_they_complete(place, era):
    worker = await place.add("far")
    mine = await place.grant("greet", kinds=["prompts"])
    await place.grant("job")
    client = await client_of(era).open(place.served, "agent")
    ref = {"type": "ref/prompt", "name": "far.greet"}
    asked = {"ref": ref, "argument": {"name": "who", "value": "y"}}
    told = await client.send("completion/complete", asked)
    assert told["result"]["completion"]["values"] == ["you"]
    await place.revoke(mine)
    assert "error" in await client.send("completion/complete", asked)
    assert worker.count("completion/complete") == 1


@pytest.mark.req("R-ATTRIBUTE")
async def test_what_a_server_gave_to_its_client_goes_to_no_other_that_takes_its_name(place):
    await place.add("far")
    everywhere = {"server": "*"}
    await place.grant("*", **everywhere)
    given = {"name": "far.ask", "arguments": {}}
    parked = (await place.ask("tools/call", "far.ask", given))["result"]
    assert parked["resultType"] == "input_required"
    made = await place.ask("tools/call", "far.job", {"name": "far.job", "arguments": {}})
    task = made["result"]["taskId"]
    assert (await place.served.client().delete(f"{SERVERS}/far")).status_code == 204
    other = await place.add("far")
    answers = {"q": {"action": "accept"}}
    resumed = {**given, "requestState": parked["requestState"], "inputResponses": answers}
    assert "error" in await place.ask("tools/call", "far.ask", resumed)
    assert "error" in await place.ask("tasks/get", task, {"taskId": task})
    assert other.count("tools/call") == other.count("tasks/get") == 0
