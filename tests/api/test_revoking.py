"""R-REVOKE: what an agent has open ends with the grant that allowed it, and nothing else does."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.api.mcp_client import ACCEPTED, ERAS, META, NEWER, Handshake, client_of, frame
from tests.plugin_rest import SERVERS, serve_api
from tests.registry.toolbox import BOUND, until

from mcp_junction.policy.principal import Role
from mcp_junction.protocol.versions import DENIED
from mcp_junction.store.audit_records import AuditQuery

MCP = "/api/v1/mcp"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"


@pytest.fixture
async def served(opener):
    """A gateway over each kind of store, with one server; nobody is granted anything."""
    async with AsyncExitStack() as stack:
        made = await serve_api(stack, opener, grants=False)
        await made.register("peer")
        yield made


async def grant(served, pattern="hold", agent="the-agent", **more) -> str:
    body = {"agent_id": agent, "server_id": "peer", "tool_name": pattern, **more}
    answer = await served.client().post(f"{MCP}/policies/grant", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def revoke(served, grant_id: str) -> None:
    assert (await served.client().delete(f"{MCP}/policies/{grant_id}")).status_code == 204


async def seen_by_server(served) -> list[dict]:
    answer = await served.call("peer.seen")
    return json.loads(answer.json()["content"][0]["text"])


def flights(served) -> int:
    return served.junction.servers["peer"].calls


# -- calls


@pytest.mark.req("R-REVOKE")
async def test_a_rest_call_ends_with_its_grant_and_is_cancelled_at_its_server(served):
    mine = await grant(served)
    kept = await grant(served, agent="other")
    running = asyncio.create_task(served.call("peer.hold", role="agent"))
    await until(lambda: flights(served) == 1)
    await revoke(served, kept)
    await asyncio.sleep(0)
    assert not running.done(), "another's grant"
    await revoke(served, mine)
    answer = await asyncio.wait_for(running, BOUND)
    assert (answer.status_code, answer.json()["error_code"]) == (403, "DENIED")
    assert answer.json()["context"]["delivery"] == "unknown"
    methods = [message.get("method") for message in await seen_by_server(served)]
    assert "notifications/cancelled" in methods
    assert (await served.call("peer.hold", role="agent")).status_code == 404
    await served.audit.flush()
    rows = await served.context.store.audit.rows(AuditQuery(actor="the-agent", limit=50))
    assert any(row.action == "tools/call" and row.decision == "DENY" for row in rows)


@pytest.mark.req("R-REVOKE")
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_has_begun_to_stream_ends_with_its_grant(served, era):
    mine = await grant(served)
    client = await client_of(era).open(served, "agent")
    params = {"name": "peer.hold", "arguments": {}}
    if era == "handshake":
        params["_meta"] = {"progressToken": "p"}
    running = asyncio.create_task(client.send("tools/call", params))
    await until(lambda: flights(served) == 1)
    await revoke(served, mine)
    answer = await asyncio.wait_for(running, BOUND)
    assert answer["error"]["code"] == DENIED
    assert answer["error"]["data"]["delivery"] == "unknown"
    await until(lambda: flights(served) == 0)
    again = await client.send("tools/call", params)
    assert again["error"]["message"].startswith("unknown tool: peer.hold")


@pytest.mark.req("R-REVOKE")
async def test_a_revocation_in_another_process_ends_what_runs_here(served, opener):
    mine = await grant(served)
    async with AsyncExitStack() as stack:
        other = await serve_api(stack, opener, grants=False, only=("admin",))
        other.keys["agent"] = served.keys["agent"]
        await other.until("peer", "CONNECTED")
        running = asyncio.create_task(other.call("peer.hold", role="agent"))
        await until(lambda: flights(other) == 1)
        await revoke(served, mine)
        assert (await served.call("peer.hold", role="agent")).status_code == 404
        assert (await asyncio.wait_for(running, BOUND)).status_code == 403
        assert (await other.call("peer.hold", role="agent")).status_code == 404
        await grant(served)
        async with asyncio.timeout(BOUND):
            while not (await other.client().get(f"{MCP}/policies")).json():
                pass


@pytest.mark.req("R-REVOKE")
async def test_a_call_that_another_grant_allows_goes_on(served):
    one, two = await grant(served), await grant(served, "h*")
    running = asyncio.create_task(served.call("peer.hold", role="agent"))
    await until(lambda: flights(served) == 1)
    await revoke(served, one)
    assert (await served.call("peer.release")).status_code == 200
    assert (await asyncio.wait_for(running, BOUND)).status_code == 200
    await revoke(served, two)


@pytest.mark.req("R-REVOKE")
async def test_a_call_in_an_agents_name_ends_with_that_agents_grant(served):
    mine = await grant(served, agent="bot")
    body = {"agent_id": "bot", "server_id": "peer", "tool_name": "hold", "params": {}}
    running = asyncio.create_task(served.client("orchestrator").post(f"{MCP}/invoke", json=body))
    await until(lambda: flights(served) == 1)
    await revoke(served, mine)
    answer = await asyncio.wait_for(running, BOUND)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "AuthorizationError")
    assert answer.json()["delivery"] == "unknown"


async def send_ask(served, tool="peer.ask", **more):
    """Call the tool that asks, or come back with the answers to its questions."""
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    asked = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
    given = {"name": tool, "arguments": asked, "_meta": {**meta, **more.pop("carried", {})}}
    headers = {**ACCEPTED, "mcp-protocol-version": NEWER, "mcp-method": "tools/call"}
    headers["mcp-name"] = tool
    message = frame("tools/call", {**given, **more})
    return (await served.client("agent").post("/mcp", json=message, headers=headers)).json()


def answers_to(parked) -> dict:
    answers = {name: {"action": "accept"} for name in parked["inputRequests"]}
    return {"requestState": parked["requestState"], "inputResponses": answers}


@pytest.mark.req("R-REVOKE")
async def test_a_parked_call_ends_with_its_grant(served):
    mine = await grant(served, "ask")
    parked = (await send_ask(served))["result"]
    assert parked["resultType"] == "input_required"
    assert len(served.junction.parked_calls) == 1
    await revoke(served, mine)
    assert len(served.junction.parked_calls) == 0
    await until(lambda: flights(served) == 0)
    late = await send_ask(served, **answers_to(parked))
    assert late["error"]["message"].startswith("unknown tool: peer.ask")


@pytest.mark.req("R-REVOKE")
async def test_a_fallback_that_has_asked_twice_ends_with_the_grant_of_its_target(served):
    await served.register("far")
    await grant(served, "ask", server_id="far")
    mine = await grant(served, "ask")
    target = {"server_id": "peer", "tool_name": "ask"}
    path = f"{MCP}/tools/far/ask"
    assert (await served.client().patch(path, json={"fallbacks": [target]})).status_code == 200
    assert (await served.client().post(f"{SERVERS}/far/disconnect")).status_code == 200
    parked = (await send_ask(served, "far.ask"))["result"]
    again = (await send_ask(served, "far.ask", requestState=parked["requestState"]))["result"]
    assert again["inputRequests"] == parked["inputRequests"], "nothing was answered"
    await revoke(served, mine)
    assert len(served.junction.parked_calls) == 0
    await until(lambda: flights(served) == 0)
    assert "error" in await send_ask(served, "far.ask", **answers_to(again))


@pytest.mark.req("R-REVOKE")
async def test_a_parked_high_risk_call_is_not_carried_on_by_a_grant_whose_token_it_lacks(served):
    address = f"{MCP}/tools/peer/ask"
    assert (await served.client().patch(address, json={"risk": "high"})).status_code == 200
    body = {"agent_id": "the-agent", "server_id": "peer", "tool_name": "ask"}
    given = await served.client().post(
        f"{MCP}/policies/grant", json={**body, "token_mode": "single_use"}
    )
    other = await grant(served, "as*", token_mode="present")
    token = {"junction/token": given.json()["token"]}
    parked = (await send_ask(served, carried=token))["result"]
    await revoke(served, other)
    assert len(served.junction.parked_calls) == 1, "another's grant"
    await grant(served, "as*", token_mode="present")
    await revoke(served, given.json()["id"])
    assert len(served.junction.parked_calls) == 0
    await until(lambda: flights(served) == 0)
    late = await send_ask(served, **answers_to(parked))
    assert "error" in late


@pytest.mark.req("R-REVOKE")
async def test_nothing_passes_by_a_revoked_grant_in_any_way(served):
    every = await grant(served, "*", kinds=["tools", "prompts", "resources"])
    client = await Handshake.open(served, "agent")
    argument = {"name": "who", "value": "x"}
    asked = [
        ("tools/call", {"name": "peer.echo", "arguments": {}}),
        ("prompts/get", {"name": "peer.greet"}),
        ("resources/read", {"uri": "note://1"}),
        ("resources/subscribe", {"uri": "note://1"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "peer.greet"}, "argument": argument},
        ),
    ]
    for method, params in asked:
        assert "result" in await client.send(method, params), method
    await revoke(served, every)
    for method, params in asked:
        assert "error" in await client.send(method, params), method
    for method, key in (
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ):
        assert (await client.send(method))["result"][key] == []


# -- streams and subscriptions


@asynccontextmanager
async def listening(served, role="agent", uris=(), path="/mcp"):
    """What comes on a ``subscriptions/listen`` stream, and None at its end."""
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": list(uris),
    }
    body = frame("subscriptions/listen", {"notifications": wanted, "_meta": META})
    headers = {**ACCEPTED, "mcp-protocol-version": NEWER, "mcp-method": "subscriptions/listen"}
    async with _reading(served.client(role), "POST", path, headers, body) as heard:
        await until(lambda: heard)
        yield heard


@asynccontextmanager
async def standing(served, client, path="/mcp"):
    """What comes on the standing stream of a session, and None at its end."""
    headers = {"accept": "text/event-stream", "mcp-session-id": client.session}
    async with _reading(served.client(client.role), "GET", path, headers, None) as heard:
        yield heard


@asynccontextmanager
async def _reading(client, method, path, headers, body):
    heard = []

    async def read(answer):
        async for line in answer.aiter_lines():
            if line.startswith("data:") and line[5:].strip():
                heard.append(json.loads(line[5:]))
        heard.append(None)

    async with client.stream(method, path, json=body, headers=headers) as answer:
        assert answer.status_code == 200
        reading = asyncio.create_task(read(answer))
        try:
            yield heard
        finally:
            reading.cancel()


@pytest.mark.req("R-REVOKE")
async def test_a_listen_ends_when_a_resource_of_it_is_hidden(served):
    one = await grant(served, "note://1", kinds=["resources"])
    two = await grant(served, "note://2", kinds=["resources"])
    async with listening(served, uris=["note://1"]) as first:
        async with listening(served, uris=["note://2"]) as second:
            assert first[0]["params"]["notifications"]["resourceSubscriptions"] == ["note://1"]
            await revoke(served, two)
            await until(lambda: None in second)
            assert second[-2]["result"]["resultType"] == "complete"
        assert None not in first
        await revoke(served, one)
        await until(lambda: None in first)
    subscriptions = served.junction.clients.subscriptions
    await until(lambda: not subscriptions.of("peer"))


@pytest.mark.req("R-REVOKE")
async def test_a_subscription_of_a_session_ends_with_its_grant(served):
    one = await grant(served, "note://1", kinds=["resources"])
    await grant(served, "note://2", kinds=["resources"])
    client = await Handshake.open(served, "agent")
    for uri in ("note://1", "note://2"):
        assert "result" in await client.send("resources/subscribe", {"uri": uri})
    subscriptions = served.junction.clients.subscriptions
    assert set(subscriptions.of("peer")) == {"note://1", "note://2"}
    await revoke(served, one)
    assert subscriptions.of("peer") == ["note://2"]

    async def is_told() -> bool:
        return any(
            message.get("method") == "resources/unsubscribe"
            and message["params"]["uri"] == "note://1"
            for message in await seen_by_server(served)
        )

    async with asyncio.timeout(BOUND):
        while not await is_told():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.02)


@pytest.mark.req("R-REVOKE")
async def test_what_is_open_at_an_endpoint_ends_when_that_is_not_there_any_more(served):
    mine = await grant(served)
    client = await Handshake.open(served, "agent", "/mcp/peer")
    everywhere = await Handshake.open(served, "agent")
    async with (
        standing(served, client, "/mcp/peer") as heard,
        listening(served, path="/mcp/peer") as listened,
    ):
        await revoke(served, mine)
        await until(lambda: None in heard and None in listened)
    answer = await served.client("agent").post("/mcp/peer", json=frame("ping"))
    assert answer.status_code == 404
    assert (await everywhere.send("tools/list"))["result"]["tools"] == []


# -- news


@pytest.mark.req("REQ-MCP-AUTH-001")
async def test_clients_of_an_agent_hear_which_of_its_lists_changed(served):
    key = (await served.ring.create(Role.AGENT, "other", "test"))[1]
    served.keys["other"] = key
    mine, others = await Handshake.open(served, "agent"), await Handshake.open(served, "other")
    for client in (mine, others):
        for kind in ("tools", "prompts", "resources"):
            await client.send(f"{kind}/list")

    def methods(heard) -> list[str]:
        return [one["method"] for one in heard if one and "acknowledged" not in one["method"]]

    async with (
        standing(served, mine) as session,
        standing(served, others) as other_session,
        listening(served) as listen,
        listening(served, "other") as other_listen,
    ):
        given = await grant(served)
        await until(lambda: methods(session) == methods(listen) == [TOOLS_CHANGED])
        await grant(served, "nothing-has-this-name")
        await grant(served, "greet", kinds=["prompts"])
        await until(lambda: methods(session) == methods(listen) == [TOOLS_CHANGED, PROMPTS_CHANGED])
        await revoke(served, given)
        await until(lambda: methods(listen)[2:] == [TOOLS_CHANGED])
        await grant(served, "note://of/*", kinds=["resources"])
        await until(lambda: methods(listen)[3:] == [RESOURCES_CHANGED])
        assert methods(session) == methods(listen)
        assert methods(other_session) == methods(other_listen) == []
