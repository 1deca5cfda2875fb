"""Grants, tokens and agents over REST: what is answered, and what it lets an agent do."""

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack

import pytest
from tests.plugin_rest import SERVERS, serve_api
from tests.registry.toolbox import BOUND

from mcp_junction.governance.failures import FailedCall
from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.store.audit_records import AuditQuery

MCP = "/api/v1/mcp"
GRANT = f"{MCP}/policies/grant"
ADMIN = Principal("the-admin", Role.ADMIN)


@pytest.fixture
async def closed(opener):
    """A gateway over each kind of store with one server, and an agent that may do nothing."""
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, grants=False)
        await served.register("peer")
        yield served


async def grant(served, tool="echo", role="admin", status=201, **more):
    body = {"agent_id": "the-agent", "server_id": "peer", "tool_name": tool, **more}
    answer = await served.client(role).post(GRANT, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def listed(served, role="agent"):
    found = (await served.client(role).get(f"{MCP}/tools")).json()
    return {f"{tool['server_id']}.{tool['tool_name']}" for tool in found}


async def acts(served, *actions):
    await served.audit.flush()
    store = served.context.store
    rows = await store.audit.rows(AuditQuery(kind="outcome", limit=1000))
    return [(r.action, r.actor, r.target, r.outcome) for r in rows[::-1] if r.action in actions]


async def events(served):
    await served.bus.flush()
    return await served.context.store.events.after(0, limit=1000, types=("policy.changed",))


@pytest.mark.req("REQ-MCP-AUTH-001", "REQ-MCP-AUTH-003", "MCP-POST-policies-grant")
async def test_an_agent_may_call_what_it_is_granted_and_nothing_else(closed):
    assert await listed(closed) == set()
    assert (await closed.call("peer.echo", role="agent")).status_code == 404
    given = await grant(closed)
    assert given["server_id"] == "peer"
    assert (given["agent_id"], given["tool_name"], given["version"]) == ("the-agent", "echo", 1)
    assert (given["granted_by"], given["token_mode"]) == ("the-admin", "window")
    assert given["token"].startswith(f"jtk_{given['token_id']}_")
    assert await listed(closed) == {"peer.echo"}
    assert (await closed.call("peer.echo", role="agent")).status_code == 200
    assert (await closed.call("peer.hold", role="agent")).status_code == 404
    revoked = await closed.client().delete(f"{MCP}/policies/{given['id']}")
    assert revoked.status_code == 204
    assert await listed(closed) == set()
    assert (await closed.call("peer.echo", role="agent")).status_code == 404
    again = await closed.client().delete(f"{MCP}/policies/{given['id']}")
    assert (again.status_code, again.json()["error"]["type"]) == (404, "GrantNotFoundError")
    assert await acts(closed, "policy.grant", "policy.revoke") == [
        ("policy.grant", "the-admin", "the-agent", "ok"),
        ("policy.revoke", "the-admin", "the-agent", "ok"),
    ]
    assert [(e.subject, e.data["change"]) for e in await events(closed)] == [
        ("the-agent", "granted"),
        ("the-agent", "revoked"),
    ]


@pytest.mark.req("MCP-GET-policies")
async def test_grants_are_listed_without_their_secrets(closed):
    one = await grant(closed, note="why not", limits={"calls": 5, "per": 60})
    two = await grant(closed, "h*", expires_at="2090-01-01T00:00:00Z")
    await grant(closed, agent_id="other", server_id="*", tool_name="*", kinds=["tools", "prompts"])
    found = await closed.client().get(f"{MCP}/policies/the-agent")
    assert {each["id"] for each in found.json()} == {one["id"], two["id"]}
    assert "token" not in found.json()[0]
    assert one["token"][-20:] not in found.text
    shown = {each["id"]: each for each in found.json()}
    assert shown[one["id"]]["limits"] == {"calls": 5, "per": 60.0}
    assert shown[one["id"]]["note"] == "why not"
    assert shown[two["id"]]["expires_at"] == "2090-01-01T00:00:00.000Z"
    assert shown[one["id"]]["token_expires_at"] is not None
    everything = await closed.client("viewer").get(f"{MCP}/policies")
    assert len(everything.json()) == 3
    only = await closed.client().get(f"{MCP}/policies", params={"agent_id": "other"})
    assert [each["server_id"] for each in only.json()] == ["*"]
    assert (await closed.client().get(f"{MCP}/policies/nobody")).json() == []


async def test_a_long_list_has_pages(closed):
    for number in range(5):
        await grant(closed, f"tool-{number}")
    seen, address = [], f"{MCP}/policies?limit=2"
    while address:
        answer = await closed.client().get(address)
        assert len(answer.json()) <= 2
        seen += [each["tool_name"] for each in answer.json()]
        link = answer.headers.get("link", "")
        address = link.partition("<")[2].partition(">")[0]
        assert not link or link.endswith('; rel="next"')
    assert sorted(seen) == [f"tool-{number}" for number in range(5)]
    bad = await closed.client().get(f"{MCP}/policies", params={"cursor": "never given out"})
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.req("REQ-MCP-AUTH-001")
async def test_the_same_grant_again_is_the_same_with_a_new_token(closed):
    one = await grant(closed)
    two = await grant(closed, note="longer", token_ttl=60)
    assert (two["id"], two["version"]) == (one["id"], 2)
    assert two["token_id"] != one["token_id"]
    (shown,) = (await closed.client().get(f"{MCP}/policies/the-agent")).json()
    assert (shown["note"], shown["token_ttl"]) == ("longer", 60.0)


SENSELESS = [
    ({"server_id": "nobody"}, 404, "ServerNotFoundError", "nobody"),
    ({"tool_name": ""}, 400, "BadRequestError", "tool_name"),
    ({"tool_name": "x" * 257}, 400, "BadRequestError", "tool_name"),
    ({"agent_id": "a\nb"}, 400, "BadRequestError", "agent_id"),
    ({"agent_id": ""}, 400, "BadRequestError", "agent_id"),
    ({"actions": ["delete"]}, 400, "BadRequestError", "actions"),
    ({"kinds": []}, 400, "BadRequestError", "kinds"),
    ({"kinds": ["servers"]}, 400, "BadRequestError", "kinds"),
    ({"kinds": ["resources"], "tool_name": "a/../b"}, 400, "BadRequestError", "tool_name"),
    ({"token_mode": "never"}, 400, "BadRequestError", "token_mode"),
    ({"token_ttl": 0}, 400, "BadRequestError", "token_ttl"),
    ({"expires_at": "2001-01-01T00:00:00Z"}, 400, "BadRequestError", "expires_at"),
    ({"expires_at": "tomorrow"}, 400, "BadRequestError", "expires_at"),
    ({"expires_at": "2090-01-01T00:00:00"}, 400, "BadRequestError", "expires_at"),
    ({"limits": {"calls": 0, "per": 60}}, 400, "BadRequestError", "limits"),
    ({"limits": {"calls": 1, "per": 0.5}}, 400, "BadRequestError", "limits"),
    ({"when": "args.path +"}, 400, "BadRequestError", "when"),
    ({"unknown": 1}, 400, "BadRequestError", "unknown"),
]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"tool_name": "ecko"}, "no known tool of 'peer' is named 'ecko' (near: echo)"),
        ({"tool_name": "zz*"}, "no known tool of 'peer' fits 'zz*'"),
        ({"tool_name": "qwxyz", "server_id": "*"}, "no known tool of any server is named 'qwxyz'"),
        ({"tool_name": "*", "when": "false"}, "no call of agent 'the-agent' can meet its cond"),
        ({"tool_name": "e*", "when": '"true"'}, "can meet its condition"),
        ({"tool_name": "echo", "when": "args.x == 1 && 1 > 2"}, "can meet its condition"),
        ({"tool_name": "echo", "when": 'agent.id == "other"'}, "can meet its condition"),
        ({"tool_name": "echo", "when": 'tool.name == "hold"'}, "can meet its condition"),
    ],
)
async def test_a_grant_that_may_let_nothing_pass_is_given_with_a_warning(closed, terms, words):
    given = await grant(closed, **terms)
    (warning,) = given.pop("warnings")
    assert words in warning
    (kept,) = (await closed.client().get(f"{MCP}/policies/the-agent")).json()
    assert kept.items() <= {**given, "token_expires_at": kept["token_expires_at"]}.items()


@pytest.mark.parametrize(
    "terms",
    [
        {"tool_name": "echo"},
        {"tool_name": "ec?o", "server_id": "*"},
        {"tool_name": "*"},
        {"tool_name": "unknown", "kinds": ["prompts"]},
        {"tool_name": "e*", "when": 'tool.name == "echo"'},
        {"tool_name": "echo", "when": 'args.x == "false" || false'},
        {"tool_name": "echo", "when": 'tool.risk == "high"'},
    ],
)
async def test_a_grant_that_may_let_something_pass_is_given_without_a_warning(closed, terms):
    assert "warnings" not in await grant(closed, **terms)


async def test_the_audit_tells_what_a_grant_asks_of_high_risk_calls(closed):
    await grant(closed, token_mode="none")
    await closed.audit.flush()
    query = AuditQuery(action="policy.grant", kind="outcome")
    (row,) = await closed.context.store.audit.rows(query)
    assert json.loads(row.detail)["high_risk"] == "none"


async def test_declared_tools_that_are_not_known_are_bound_with_a_warning(closed):
    body = {"agent_id": "new", "declared_tools": ["peer:echo", "peer:ecko"]}
    made = (await closed.client().post(f"{MCP}/agents", json=body)).json()
    warned = {one["tool_name"]: one.get("warnings") for one in made["bound"]}
    assert warned["echo"] is None
    assert "(near: echo)" in warned["ecko"][0]


async def test_what_makes_no_sense_is_refused_and_nothing_is_granted(gateway):
    served = await gateway(grants=False)
    for body, status, kind, words in SENSELESS:
        given = {"agent_id": "the-agent", "server_id": "*", "tool_name": "echo", **body}
        answer = await served.client().post(GRANT, json=given)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind), body
        assert words in answer.json()["error"]["message"], body
        assert (await served.client().get(f"{MCP}/policies")).json() == [], body
        assert (await served.client().get(f"{MCP}/agents")).json() == [], body


# -- who may


async def test_an_orchestrator_grants_to_others_and_never_to_itself(closed):
    await grant(closed, role="orchestrator")
    given = await grant(closed, agent_id="the-orchestrator")
    own = f"{MCP}/policies/{given['id']}"
    client = closed.client("orchestrator")
    body = {"agent_id": "the-orchestrator", "server_id": "*", "tool_name": "*"}
    for answer in (
        await client.post(GRANT, json=body),
        await client.post(f"{own}/token"),
        await client.delete(f"{own}/token"),
        await client.delete(own),
        await client.post(f"{MCP}/agents", json={"agent_id": "the-orchestrator"}),
        await client.delete(f"{MCP}/agents/the-orchestrator"),
        await client.post(f"{MCP}/agents", json={"agent_id": "a", "create_key": True}),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenError")
    assert (await client.get(f"{MCP}/policies/the-orchestrator")).json()[0]["id"] == given["id"]
    none = await client.post(GRANT, json={**body, "agent_id": "x", "token_mode": "none"})
    assert (none.status_code, none.json()["error"]["type"]) == (400, "BadRequestError")
    assert "administrator" in none.json()["error"]["message"]
    await closed.audit.flush()
    rows = await closed.context.store.audit.rows(AuditQuery(actor="the-orchestrator", limit=100))
    assert any(row.decision == "denied" or row.outcome == "denied" for row in rows)


@pytest.mark.req("J-AGENT-CLAIM")
async def test_an_agent_reads_its_own_policy_and_no_other(closed):
    await grant(closed)
    client = closed.client("agent")
    assert len((await client.get(f"{MCP}/policies/the-agent")).json()) == 1
    assert (await client.get(f"{MCP}/agents/the-agent")).json()["grants"] == 1
    other = {"agent_id": "other", "server_id": "peer", "tool_name": "echo"}
    for answer in (
        await client.get(f"{MCP}/policies/other"),
        await client.get(f"{MCP}/agents/other"),
        await client.post(f"{MCP}/explain", json=other),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "AuthorizationError")
        assert "www-authenticate" not in answer.headers
    for answer in (
        await client.get(f"{MCP}/policies"),
        await client.get(f"{MCP}/agents"),
        await client.post(GRANT, json={**other, "agent_id": "the-agent"}),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenError")


async def test_the_local_owners_grant_is_listed_while_there_is_an_owner(gateway):
    served = await gateway(only=("admin",))
    (owner,) = (await served.client().get(f"{MCP}/policies")).json()
    assert (owner["agent_id"], owner["tool_name"], owner["source"]) == ("local-owner", "*", "owner")
    assert len((await served.client().get(f"{MCP}/policies/local-owner")).json()) == 1
    await served.ring.create(Role.VIEWER, "v", "test")
    assert (await served.client().get(f"{MCP}/policies")).json() == []


@pytest.mark.req("J-AGENT-CLAIM")
async def test_only_administrators_and_orchestrators_call_in_an_agents_name(closed):
    await grant(closed)
    body = {"agent_id": "the-agent", "server_id": "peer", "tool_name": "echo", "params": {}}

    async def invoke(role, **more):
        answer = await closed.client(role).post(f"{MCP}/invoke", json={**body, **more})
        kind = (answer.json()["error"] or {}).get("type")
        return answer.status_code, kind

    assert await invoke("agent") == (200, None)
    assert await invoke("orchestrator") == (200, None)
    assert await invoke("admin") == (200, None)
    assert await invoke("agent", agent_id="other") == (401, "AuthorizationError")
    assert await invoke("orchestrator", agent_id="other") == (401, "AuthorizationError")
    assert await invoke("admin", agent_id="other") == (401, "AuthorizationError")
    assert await invoke("orchestrator", agent_id="the-orchestrator") == (401, "AuthorizationError")
    assert (await invoke("viewer"))[0] == 403


@pytest.mark.req("REQ-MCP-AUTH-001")
async def test_what_a_removed_agent_used_of_its_limits_is_kept_nowhere(closed):
    limits, table = closed.junction.governance.limits, closed.context.store.limits
    hourly = {"calls": 5, "per": 3600}
    gone = await grant(closed, limits=hourly)
    stays = await grant(closed, agent_id="other", limits=hourly)

    async def call_once_each():
        for agent in ("the-agent", "other"):
            body = {"agent_id": agent, "server_id": "peer", "tool_name": "echo", "params": {}}
            answer = await closed.client().post(f"{MCP}/invoke", json=body)
            assert answer.status_code == 200, answer.text

    async def stored():
        return {one.grant_id for one in await table.all(time.time())}

    await call_once_each()
    await limits.save()
    assert await stored() == {gone["id"], stays["id"]}
    await call_once_each()  # so that there is more to store
    assert (await closed.client().delete(f"{MCP}/agents/the-agent")).status_code == 204
    assert await stored() == {stays["id"]}
    await limits.save()
    assert await stored() == {stays["id"]}


# -- tokens


class Risky:
    """A high-risk tool, called by an agent by one grant."""

    def __init__(self, served, given) -> None:
        self.served = served
        self.given = given
        self.address = f"{MCP}/policies/{given['id']}/token"

    @classmethod
    async def make(cls, served, mode, **more):
        setting = f"{MCP}/tools/peer/echo"
        answer = await served.client().patch(setting, json={"risk": "high"})
        assert answer.status_code == 200, answer.text
        return cls(served, await grant(served, token_mode=mode, **more))

    async def invoke(self, token=None, **more):
        body = {"server_id": "peer", "tool_name": "echo", "params": {}, **more}
        given = body if token is None else {**body, "token": token}
        answer = await self.served.client("agent").post(
            f"{MCP}/invoke", json={"agent_id": "the-agent", **given}
        )
        return answer.status_code


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_high_risk_call_passes_while_a_token_of_its_grant_is_live(closed):
    risky = await Risky.make(closed, "window")
    assert await risky.invoke() == 200
    await closed.client().delete(risky.address)
    assert await risky.invoke() == 401
    assert await listed(closed) == {"peer.echo"}, "it is listed all the same"
    assert (await closed.call("peer.echo", role="agent")).status_code == 403
    told = await explain(closed)
    assert (told["decision"], told["rule"], told["token_required"]) == ("DENY", "token", True)
    assert "have it renewed" in told["would_pass_if"][0]
    await closed.client().post(risky.address)
    assert await risky.invoke() == 200


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_high_risk_call_has_to_carry_the_token_of_its_grant(closed):
    risky = await Risky.make(closed, "present")
    other = await grant(closed, "hold")
    token = risky.given["token"]
    assert [await risky.invoke(one) for one in (None, other["token"], token, token)] == [
        401, 401, 200, 200,
    ]  # fmt: skip
    renewed = (await closed.client().post(risky.address)).json()["token"]
    assert [await risky.invoke(one) for one in (token, renewed)] == [401, 200]


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_of_many_calls_with_one_single_use_token_one_passes(closed):
    risky = await Risky.make(closed, "single_use")
    token = risky.given["token"]
    statuses = await asyncio.gather(*(risky.invoke(token) for _ in range(50)))
    assert sorted(statuses) == [200, *[401] * 49]
    assert await risky.invoke(token) == 401


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_call_that_is_made_again_with_its_key_spends_no_second_token(closed):
    risky = await Risky.make(closed, "single_use")
    token = risky.given["token"]
    assert await risky.invoke(token, idempotency_key="one") == 200
    assert await risky.invoke(token, idempotency_key="one") == 200
    assert await risky.invoke(token, idempotency_key="two") == 401


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_token_is_renewed_and_revoked(closed):
    given = await grant(closed, token_mode="single_use")
    address = f"{MCP}/policies/{given['id']}/token"
    renewed = await closed.client("orchestrator").post(address)
    assert renewed.status_code == 201
    assert renewed.json()["token"] != given["token"]
    (token,) = closed.context.live_policy.tokens_of("the-agent")[given["id"]]
    assert token.id == renewed.json()["token_id"]
    assert (await closed.client().delete(address)).status_code == 204
    assert closed.context.live_policy.tokens_of("the-agent") == {}
    for answer in (
        await closed.client().post(f"{MCP}/policies/nobody/token"),
        await closed.client().delete(f"{MCP}/policies/nobody/token"),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "GrantNotFoundError")
    free = await grant(closed, "h*", token_mode="none")
    assert free["token"] is None
    needless = await closed.client().post(f"{MCP}/policies/{free['id']}/token")
    assert (needless.status_code, needless.json()["error"]["type"]) == (400, "BadRequestError")
    changes = [event.data["change"] for event in await events(closed)]
    assert changes == ["granted", "token_renewed", "token_revoked", "granted"]


# -- agents


@pytest.mark.req("REQ-MCP-AUTH-002")
async def test_registering_an_agent_binds_its_declared_tools(closed):
    await grant(closed, "by-hand", agent_id="bot")

    async def register(*tools, status=201, **more):
        body = {"agent_id": "bot", "agent_type": "builder", "declared_tools": tools, **more}
        answer = await closed.client().post(f"{MCP}/agents", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    made = await register("peer:echo", "peer:hold", create_key=True)
    assert (made["agent_type"], made["grants"]) == ("builder", 3)
    assert {one["tool_name"] for one in made["bound"]} == {"echo", "hold"}
    assert all(one["token"] and one["source"] == "bound" for one in made["bound"])
    closed.keys["bot"] = made["key"]
    assert await listed(closed, "bot") == {"peer.echo", "peer.hold"}
    again = await register("peer:echo", "peer:h*")
    assert {one["tool_name"] for one in again["bound"]} == {"echo", "h*"}
    assert "key" not in again
    found = (await closed.client().get(f"{MCP}/policies/bot")).json()
    assert {one["tool_name"] for one in found} == {"by-hand", "echo", "h*"}
    wrong = await register("peer:echo", "nowhere:echo", status=400)
    assert "declared_tools[1]" in wrong["error"]["message"]
    assert len((await closed.client().get(f"{MCP}/policies/bot")).json()) == 3
    (shown,) = (await closed.client().get(f"{MCP}/agents")).json()
    assert shown == (await closed.client().get(f"{MCP}/agents/bot")).json()
    assert (shown["declared_tools"], shown["created_by"]) == (["peer:echo", "peer:h*"], "the-admin")


async def test_removing_an_agent_ends_its_keys_grants_and_tokens(closed):
    body = {"agent_id": "bot", "declared_tools": ["peer:*"], "create_key": True}
    made = (await closed.client().post(f"{MCP}/agents", json=body)).json()
    closed.keys["bot"] = made["key"]
    running = asyncio.create_task(closed.call("peer.hold", role="bot"))
    await closed.busy()
    assert (await closed.client().delete(f"{MCP}/agents/bot")).status_code == 204
    ended = await asyncio.wait_for(running, BOUND)
    assert ended.status_code in (401, 403)
    assert (await closed.call("peer.echo", role="bot")).status_code == 401
    assert (await closed.client().get(f"{MCP}/policies/bot")).json() == []
    gone = await closed.client().get(f"{MCP}/agents/bot")
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "AgentNotFoundError")
    again = await closed.client().delete(f"{MCP}/agents/bot")
    assert (again.status_code, again.json()["error"]["type"]) == (404, "AgentNotFoundError")
    ring = await KeyRing.open(closed.context.store)
    assert ring.principal(f"Bearer {made['key']}".encode()) is None
    assert ("agent.remove", "the-admin", "bot", "ok") in await acts(closed, "agent.remove")


async def test_an_agent_that_is_made_again_reads_nothing_of_the_one_before(closed):
    async def make() -> None:
        body = {"agent_id": "bot", "declared_tools": ["peer:*"], "create_key": True}
        closed.keys["bot"] = (await closed.client().post(f"{MCP}/agents", json=body)).json()["key"]
        if before := closed._clients.pop("bot", None):
            await before.aclose()

    async def invoke(text: str):
        body = {"server_id": "peer", "tool_name": "echo", "params": {"text": text}}
        return await closed.client("bot").post(
            f"{MCP}/invoke", json=body | {"idempotency_key": "k"}
        )

    async def read(what: str) -> list:
        answer = await closed.client("bot").get(f"{MCP}/{what}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    await make()
    assert (await invoke("secret")).status_code == 200
    assert (await invoke("other")).status_code == 409
    server_id = closed.junction.servers["peer"].definition.id
    failed = FailedCall("bot", server_id, "echo", "timeout", "late", "unknown", 3, "c")
    closed.junction.governance.escalations.escalate(failed)
    await closed.audit.flush()
    assert len(await read("audit")) >= 1
    assert len(await read("escalations")) == 1
    await closed.client().delete(f"{MCP}/agents/bot")
    await make()
    assert await read("audit") == await read("escalations") == []
    again = await invoke("other")
    assert (again.status_code, "secret" in again.text) == (200, False)
    await closed.audit.flush()
    everything = (await closed.client().get(f"{MCP}/audit", params={"agent_id": "bot"})).json()
    assert len(everything) > len(await read("audit")) > 0, "the operator reads all of it"


async def test_a_renamed_server_keeps_its_grants_and_a_removed_one_takes_them_along(closed):
    given = await grant(closed, "*")
    await closed.client().patch(f"{SERVERS}/peer", json={"name": "other"})
    (shown,) = (await closed.client().get(f"{MCP}/policies/the-agent")).json()
    assert (shown["id"], shown["server_id"]) == (given["id"], "other")
    assert (await closed.call("other.echo", role="agent")).status_code == 200
    assert (await closed.client().delete(f"{SERVERS}/other")).status_code == 204
    async with asyncio.timeout(BOUND):
        while (await closed.client().get(f"{MCP}/policies/the-agent")).json():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await closed.register("other")
    assert (await closed.call("other.echo", role="agent")).status_code == 404


# -- explain


async def explain(served, tool="echo", role="admin", agent="the-agent", server="peer", **more):
    body = {"agent_id": agent, "server_id": server, "tool_name": tool, **more}
    answer = await served.client(role).post(f"{MCP}/explain", json=body)
    return answer.json() if answer.status_code == 200 else answer


async def test_a_decision_is_explained_with_what_would_change_it(closed):
    denied = await explain(closed)
    assert (denied["decision"], denied["rule"], denied["token_required"]) == (
        "DENY",
        "default",
        False,
    )
    assert denied["would_pass_if"] == ["agent 'the-agent' is granted tool 'echo' on server 'peer'"]
    given = await grant(closed)
    allowed = await explain(closed)
    assert (allowed["decision"], allowed["rule"]) == ("ALLOW", f"grant:{given['id']}")
    assert allowed["would_pass_if"] == []
    assert (await explain(closed))["cached"] is True
    for server, tool, kind in (
        ("nobody", "echo", "ServerNotFoundError"),
        ("peer", "nothing", "ToolNotFoundError"),
    ):
        answer = await explain(closed, tool, server=server)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, kind)


async def test_what_the_local_owner_may_is_explained_by_its_grant(gateway):
    served = await gateway(only=("admin",))
    await served.register("peer")
    told = await explain(served, agent="local-owner")
    assert (told["decision"], told["rule"]) == ("ALLOW", "grant:owner")
    assert (told["token_required"], told["would_pass_if"]) == (False, [])
    await served.client().patch(f"{MCP}/tools/peer/echo", json={"risk": "high", "enabled": False})
    told = await explain(served, agent="local-owner")
    assert (told["decision"], told["token_required"]) == ("ALLOW", False)
    assert told["would_pass_if"] == ["the tool is enabled again; now it is not: disabled"]
    await served.ring.create(Role.AGENT, "local-owner", "test")
    told = await explain(served, agent="local-owner")
    assert (told["decision"], told["rule"]) == ("DENY", "default")
    assert "--owner-without-key" in told["would_pass_if"][-1]


async def test_an_agent_that_has_the_owners_id_is_told_nothing_of_the_owner(gateway):
    served = await gateway(only=("admin",))
    await served.register("peer")
    _, served.keys["agent"] = await served.ring.create(Role.AGENT, "local-owner", "test")
    served.context.has_owner = lambda: True  # as with `serve --owner-without-key`
    assert (await explain(served, agent="local-owner"))["rule"] == "grant:owner"
    told = await explain(served, role="agent", agent="local-owner")
    assert (told["decision"], told["rule"]) == ("DENY", "default")
    assert "owner-without-key" not in str(told)


async def test_a_grant_is_explained_with_the_name_of_its_server(closed):
    given = await grant(closed)
    told = await explain(closed)
    assert told["reason"] == f"grant {given['id']} (granted): 'echo' on server 'peer'"
    await grant(closed, server_id="*", tool="hold")
    assert (await explain(closed, "hold"))["reason"].endswith("'hold' on every server")


async def test_to_an_agent_a_hidden_tool_is_explained_like_one_that_is_not_there(closed):
    await grant(closed)
    assert (await explain(closed, role="agent"))["decision"] == "ALLOW"
    answers = [
        await explain(closed, "hold", "agent"),
        await explain(closed, "nothing", "agent"),
        await explain(closed, "absent", "agent", server="nobody"),
    ]
    plain = [
        re.sub("nothing|absent", "hold", str(told)).replace("nobody", "peer") for told in answers
    ]
    assert len(set(plain)) == 1
    assert answers[0]["decision"] == "DENY"


async def test_expired_grants_allow_nothing_and_are_shown_as_such(closed):
    soon = time.time() + 0.5
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(soon)) + f".{int(soon % 1 * 1000):03}Z"
    await grant(closed, expires_at=stamp)
    assert await listed(closed) == {"peer.echo"}
    async with asyncio.timeout(BOUND):
        while await listed(closed):  # noqa: ASYNC110 - the time is awaited
            await asyncio.sleep(0.02)
    assert (await closed.call("peer.echo", role="agent")).status_code == 404
    (shown,) = (await closed.client().get(f"{MCP}/policies/the-agent")).json()
    assert shown["is_live"] is False
    own = await closed.client("agent").get(f"{MCP}/policies/the-agent")
    assert own.json() == [], "to the agent, what it names is not there any more"
    told = await explain(closed)
    assert f"grant {shown['id']}, which expired, is given again" in told["would_pass_if"]


# -- conditions


async def test_a_condition_lets_pass_only_calls_that_meet_it(closed):
    given = await grant(closed, when='  args.text.startsWith("public ")  ')
    assert given["when"] == 'args.text.startsWith("public ")'
    assert await listed(closed) == {"peer.echo"}
    passed = await closed.call("peer.echo", {"text": "public words"}, role="agent")
    assert passed.status_code == 200
    refused = await closed.call("peer.echo", {"text": "secret words"}, role="agent")
    assert refused.status_code == 403
    assert "does not meet the condition" in refused.text
    assert "secret words" not in refused.text
    body = {"server_id": "peer", "tool_name": "echo", "params": {"text": "no"}}
    assert (await closed.client("agent").post(f"{MCP}/invoke", json=body)).status_code == 401
    await grant(closed)  # the same grant, without a condition
    assert (await closed.call("peer.echo", {"text": "no"}, role="agent")).status_code == 200


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("args.text ==", "at character 13"),
        ("args.text.matches('a*')", "at character 11"),
        ("(" * 400 + "1" + ")" * 400, "at character 17"),
        ("args.a.all(x, x.all(y, true))", "only one"),
        ("nobody.id == 'x'", "is not known"),
    ],
)
async def test_a_condition_that_cannot_be_used_is_refused_with_its_place(closed, when, words):
    refused = await grant(closed, when=when, status=400)
    assert words in refused["error"]["message"]
    assert (await closed.client().get(f"{MCP}/policies/the-agent")).json() == []


async def test_explain_shows_the_parts_of_a_condition_without_secrets(closed):
    when = 'tool.name == "echo" && (args.text == "x" || args.password == "y")'
    given = await grant(closed, when=when)
    params = {"text": "z", "password": "hunter2-hunter2"}
    told = await explain(closed, params=params)
    assert (told["decision"], told["rule"]) == ("DENY", "condition")
    (one,) = told["conditions"]
    assert (one["grant_id"], one["is_met"], one["when"]) == (given["id"], False, when)
    assert [part["value"] for part in one["parts"]] == ["true", "false", "false"]
    assert one["reads"] == {"args.password": "[REDACTED]", "args.text": "z"}
    assert "hunter2" not in str(told)
    met = await explain(closed, params={"text": "x"})
    assert (met["decision"], met["conditions"][0]["is_met"]) == ("ALLOW", True)
    assert met["conditions"][0]["parts"][2]["value"] == "something that it reads is not there"
    unasked = await explain(closed)
    assert "arguments" in unasked["conditions"][0]["parts"][0]["value"]


# -- what a change would have done


async def simulate(served, status=200, role="admin", **body):
    answer = await served.client(role).post(f"{MCP}/policies/simulate", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def asked(tool, **more):
    return {"agent_id": "the-agent", "server_id": "peer", "tool_name": tool, **more}


@pytest.mark.req("P-8")
async def test_a_change_is_simulated_over_the_calls_that_were_made(closed):
    given = await grant(closed)
    for _ in range(3):
        assert (await closed.call("peer.echo", {"text": "x"}, role="agent")).status_code == 200
    assert (await closed.call("peer.hold", role="agent")).status_code == 404  # it is hidden
    await closed.audit.flush()
    more = await simulate(closed, grant=asked("*"))
    assert (more["newly_allowed"], more["newly_denied"], more["unchanged"]) == (1, 0, 3)
    (change,) = more["changes"]
    assert (change["server_id"], change["tool_name"]) == ("peer", "hold")
    assert (change["before"], change["after"], change["calls"]) == ("deny", "allow", 1)
    less = await simulate(closed, revoke=given["id"])
    assert (less["newly_denied"], less["calls"]) == (3, 4)
    some = await simulate(closed, grant=asked("echo", when='args.text == "y"'))
    assert (some["depends"], some["unchanged"]) == (3, 1)
    named = await simulate(closed, grant=asked("*", when='tool.name == "hold"'))
    assert [one["tool_name"] for one in named["changes"]] == ["hold"]
    fewer = await simulate(closed, grant=asked("*"), last=1)
    assert fewer["calls"] <= 1
    assert await listed(closed) == {"peer.echo"}  # nothing was changed


async def test_what_cannot_be_simulated_is_refused(closed):
    await simulate(closed, 400)
    await simulate(closed, 400, grant=asked("*"), revoke="x")
    no_grant = await simulate(closed, 404, revoke="none")
    assert no_grant["error"]["type"] == "GrantNotFoundError"
    no_server = await simulate(closed, 404, grant=asked("*", server_id="none"))
    assert no_server["error"]["type"] == "ServerNotFoundError"
    await simulate(closed, 400, grant=asked("*", when="args.x =="))
    await simulate(closed, 403, role="agent", grant=asked("*"))
