"""Every method of ``/mcp``, in every role and both eras: the table of rights rules there, too."""

import asyncio
import json

import pytest
from tests.api.mcp_client import (
    ACCEPTED,
    ERAS,
    HELLO,
    META,
    NEWER,
    Handshake,
    client_of,
    frame,
    post,
)
from tests.api.test_access import HOSTS, ORIGINS
from tests.plugin_rest import ROLES

from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.eras.tickets import SealedTask
from mcp_junction.policy.principal import RIGHTS, Principal, Right, Role
from mcp_junction.protocol.versions import DENIED, INVALID_PARAMS

CALLS = {
    "tools/call": {"name": "peer.echo", "arguments": {}},
    "prompts/get": {"name": "peer.greet", "arguments": {}},
    "resources/read": {"uri": "note://0"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "peer.greet"},
        "argument": {"name": "name", "value": "A"},
    },
}
OF_SESSIONS = {
    "resources/subscribe": {"uri": "note://0"},
    "resources/unsubscribe": {"uri": "note://0"},
}
LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
REFUSED = ("viewer", "orchestrator")
LISTEN = "subscriptions/listen"


@pytest.mark.req("S-04")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/peer"])
@pytest.mark.parametrize("era", ERAS)
async def test_each_method_is_open_to_the_roles_that_the_table_gives_it_to(gateway, era, path):
    served = await gateway()
    await served.register()
    calls = dict(CALLS, **(OF_SESSIONS if era == "handshake" else {}))
    if path != "/mcp":
        calls = {method: _alone(params) for method, params in calls.items()}
    for role in ROLES:
        client = await client_of(era).open(served, role, path)
        for method in LISTS:
            assert "result" in await client.send(method), (role, method)
        for method, params in calls.items():
            answer = await client.send(method, params)
            if Right.CALL in RIGHTS[Role(role)]:
                assert "result" in answer, (role, method, answer)
            else:
                assert answer["error"]["code"] == DENIED, (role, method, answer)
                assert answer["error"]["data"]["delivery"] == "not_sent"
                assert f"the role {role}" in answer["error"]["message"]
    seen = await _seen_by_peer(served)
    assert seen.count("prompts/get") == seen.count("resources/read") == 2, "admin and agent alone"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_task_of_somebody_else_is_none_to_who_may_not_call(gateway, method):
    served = await gateway()
    await served.register()
    seal = served.junction.parked_calls.seal
    theirs = Principal("the-agent", Role.AGENT)
    own = Principal("the-viewer", Role.VIEWER)
    peer = served.junction.servers["peer"].definition.id
    for principal, code in ((theirs, INVALID_PARAMS), (own, DENIED)):
        task = seal.seal_task(SealedTask("t1", peer), principal, EVERYTHING.name)
        client = await client_of("stateless").open(served, "viewer")
        assert (await client.send(method, {"taskId": task}))["error"]["code"] == code
    assert method not in await _seen_by_peer(served)


@pytest.mark.parametrize("role", REFUSED)
@pytest.mark.parametrize("era", ERAS)
async def test_who_may_not_call_searches_and_describes_but_calls_nothing_by_call_tool(
    gateway, era, role
):
    served = await gateway(exposure="search")
    await served.register()
    client = await client_of(era).open(served, role)
    found = await client.send("tools/call", {"name": "find_tools", "arguments": {"query": "echo"}})
    assert "peer.echo" in str(found["result"]["structuredContent"])
    asked = {"names": ["peer.echo"]}
    told = await client.send("tools/call", {"name": "describe_tools", "arguments": asked})
    assert "inputSchema" in str(told["result"]["structuredContent"])
    through = {"name": "peer.echo", "arguments": {}}
    refused = await client.send("tools/call", {"name": "call_tool", "arguments": through})
    assert refused["error"]["code"] == DENIED
    assert (await client.send("tools/call", through))["error"]["code"] == DENIED
    assert "tools/call" not in await _seen_by_peer(served, before=1)


async def test_a_viewer_hears_of_changed_lists_and_of_no_resource(gateway):
    served = await gateway()
    await served.register()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["note://0"]}
    listening = served.client("viewer").stream(
        "POST",
        "/mcp",
        json=frame(LISTEN, {"notifications": wanted, "_meta": META}),
        headers={**ACCEPTED, "mcp-protocol-version": NEWER, "mcp-method": LISTEN},
    )
    async with listening as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:") and "acknowledged" in line:
                told = json.loads(line.removeprefix("data:"))["params"]
                assert told["notifications"]["toolsListChanged"] is True
                assert not told["notifications"].get("resourceSubscriptions")
                refused = told["_meta"]["junction/refused"]
                assert list(refused) == ["note://0"], "it is told why, by what it asked for"
                assert "viewer" in refused["note://0"]
                break
    assert "resources/subscribe" not in await _seen_by_peer(served)


async def test_what_a_viewer_tells_reaches_no_server(gateway):
    served = await gateway()
    await served.register()
    viewer = await Handshake.open(served, "viewer")
    await viewer.notify("notifications/roots/list_changed")
    assert "result" in await viewer.send("logging/setLevel", {"level": "debug"})
    seen = await _seen_by_peer(served)
    assert "notifications/roots/list_changed" not in seen
    assert "logging/setLevel" not in seen
    admin = await Handshake.open(served, "admin")
    await admin.notify("notifications/roots/list_changed")
    assert "notifications/roots/list_changed" in await _seen_by_peer(served)


@pytest.mark.req("R-ISOLATE")
async def test_what_an_agent_tells_reaches_no_server_that_is_hidden_from_it(gateway):
    served = await gateway(grants=False)
    await served.register()
    agent = await Handshake.open(served, "agent")
    await agent.notify("notifications/roots/list_changed")
    assert "result" in await agent.send("logging/setLevel", {"level": "debug"})
    seen = await _seen_by_peer(served)
    assert "notifications/roots/list_changed" not in seen
    assert "logging/setLevel" not in seen


async def test_a_server_that_is_granted_later_is_told_the_log_level(gateway):
    served = await gateway(grants=False)
    await served.register()
    agent = await Handshake.open(served, "agent")
    assert "result" in await agent.send("logging/setLevel", {"level": "error"})
    grant = {"agent_id": "the-agent", "server_id": "peer", "tool_name": "*"}
    granted = await served.client("admin").post("/api/v1/mcp/policies/grant", json=grant)
    assert granted.status_code == 201, granted.text
    async with asyncio.timeout(20):
        while "logging/setLevel" not in await _seen_by_peer(served):
            pass


@pytest.mark.req("R-ISOLATE")
async def test_what_a_client_tells_servers_again_and_again_is_passed_on_now_and_then(gateway):
    served = await gateway()
    await served.register()
    admin = await Handshake.open(served, "admin")
    for number in range(40):
        await admin.notify("notifications/roots/list_changed", {"_meta": {"number": number}})
    await admin.notify("notifications/roots/list_changed", {"long": "x" * 100_000})
    async with asyncio.timeout(20):
        while (told := await _roots_seen_by_peer(served))[-1] is not None:
            pass
    assert told[0] == {"_meta": {"number": 0}}, "the first at once"
    assert len(told) < 40


async def _roots_seen_by_peer(served) -> list[dict | None]:
    """The params of the notifications of changed roots that came to the server."""
    answer = (await served.call("peer.seen")).json()
    messages = json.loads(answer["content"][0]["text"])
    method = "notifications/roots/list_changed"
    return [one.get("params") for one in messages if one.get("method") == method]


@pytest.mark.parametrize("role", REFUSED)
async def test_rest_refuses_a_call_in_the_same_words(gateway, role):
    served = await gateway()
    await served.register()
    answer = await served.call("peer.echo", role=role)
    client = await Handshake.open(served, role)
    over_mcp = await client.send("tools/call", CALLS["tools/call"])
    assert answer.status_code == 403
    assert answer.json()["detail"] == over_mcp["error"]["message"]


@pytest.mark.bulk
@pytest.mark.req("S-04")
async def test_from_a_foreign_host_or_origin_no_method_is_reached_in_any_role(gateway):
    served = await gateway()
    await served.register()
    mutations = [*({"host": host} for host in HOSTS), *({"origin": one} for one in ORIGINS)]
    bodies = [frame("initialize", HELLO), frame("tools/list")]
    bodies += [frame(method, params) for method, params in (CALLS | OF_SESSIONS).items()]
    for path in ("/mcp", "/mcp/peer"):
        for role in (None, *ROLES):
            session = (await Handshake.open(served, role, path)).session if role else "none"
            for given in mutations:
                for body in bodies:
                    answer = await post(served, role, body, path, mcp_session_id=session, **given)
                    assert answer.status_code == 403, (path, role, body, given)
                for method in ("GET", "DELETE", "PUT", "OPTIONS"):
                    headers = {"mcp-session-id": session, **given}
                    answer = await served.client(role).request(method, path, headers=headers)
                    assert answer.status_code == 403, (path, role, method, given)
    assert "tools/call" not in await _seen_by_peer(served, before=1)
    assert len(served.junction.clients.sessions) == 2 * len(ROLES), (
        "none is new, and none has ended"
    )


@pytest.mark.req("S-04")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/peer"])
async def test_without_a_key_nothing_of_any_kind_is_reached(gateway, path):
    served = await gateway()
    await served.register()
    for method in ("initialize", "tools/list", *CALLS, "subscriptions/listen", "nonsense"):
        body = frame(method, CALLS.get(method))
        for headers in ({}, {"mcp_protocol_version": "2026-07-28", "mcp_method": method}):
            answer = await post(served, None, body, path, **headers)
            assert answer.status_code == 401, method
            assert answer.headers["www-authenticate"].startswith("Bearer")
    for method in ("GET", "DELETE", "PUT"):
        assert (await served.client(None).request(method, path)).status_code == 401


@pytest.mark.req("S-04")
async def test_metrics_are_for_those_who_may_read_them(gateway):
    served = await gateway()
    for role in ROLES:
        answer = await served.client(role).get("/metrics")
        allowed = Right.READ_METRICS in RIGHTS[Role(role)]
        assert (answer.status_code == 200) is allowed, (role, answer.status_code)
    assert Right.READ_METRICS not in RIGHTS[Role.AGENT]
    assert (await served.client("agent").get("/metrics")).json()["error_code"] == "FORBIDDEN"
    assert (await served.client(None).get("/metrics")).status_code == 401


def _alone(params: dict) -> dict:
    """The same at the endpoint of one server, where names have no prefix."""
    if "ref" in params:
        return {**params, "ref": {**params["ref"], "name": "greet"}}
    if "name" in params:
        return {**params, "name": params["name"].removeprefix("peer.")}
    return params


async def _seen_by_peer(served, before: int = 0) -> list[str]:
    """The methods of all messages that came to the server, but for our own question."""
    answer = (await served.call("peer.seen")).json()
    methods = [one.get("method") for one in json.loads(answer["content"][0]["text"])]
    return methods[:-1] if before else methods
