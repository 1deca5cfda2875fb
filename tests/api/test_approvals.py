"""Approvals: a person decides about one call, which then passes once, and nothing else does."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.api.mcp_client import ERAS, client_of
from tests.plugin_rest import SERVERS, serve_api
from tests.registry.toolbox import BOUND, Toolbox, tool

from mcp_junction.store.audit_records import AuditQuery

MCP = "/api/v1/mcp"
APPROVALS = f"{MCP}/approvals"
ARGS = {"path": "/tmp/a", "password": "hunter2-hunter2"}


class World:
    """A gateway with one server, whose deletions an agent may make once somebody approves."""

    def __init__(self, served, box) -> None:
        self.served, self.box = served, box

    async def grant(self, **more):
        body = {"agent_id": "the-agent", "server_id": "box", "tool_name": "delete", **more}
        answer = await self.served.client().post(
            f"{MCP}/policies/grant", json={"token_mode": "approval", **body}
        )
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def invoke(self, args=ARGS, role="agent", **more):
        body = {"server_id": "box", "tool_name": "delete", "params": args, **more}
        return await self.served.client(role).post(f"{MCP}/invoke", json=body)

    async def ask(self, args=ARGS, **more) -> str:
        """Make a call that waits for approval; the id of its request."""
        answer = await self.invoke(args, **more)
        assert answer.status_code == 401, answer.text
        assert answer.json()["error"]["type"] == "ApprovalRequired", answer.text
        return answer.json()["approval_id"]

    async def decide(self, approval_id, what="approve", role="admin", status=200, **body):
        path = f"{APPROVALS}/{approval_id}/{what}"
        answer = await self.served.client(role).post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def show(self, approval_id):
        return (await self.served.client().get(f"{APPROVALS}/{approval_id}")).json()

    async def passes(self, args=ARGS, **more) -> bool:
        before = self.box.calls
        answer = await self.invoke(args, **more)
        assert (self.box.calls - before) == (answer.status_code == 200), answer.text
        return answer.status_code == 200


async def open_world(stack, opener, box, **settings) -> World:
    served = await serve_api(stack, opener, grants=False, **settings)
    config = {"name": "box", "transport_type": "HTTP", "connection_config": {"url": box.url}}
    answer = await served.client().post(SERVERS, json=config)
    assert answer.status_code in (201, 409), answer.text
    await served.until("box", "CONNECTED")
    return World(served, box)


@pytest.fixture
async def box():
    async with Toolbox([tool("delete"), tool("look")]) as made:
        yield made


@pytest.fixture
async def world(opener, box):
    async with AsyncExitStack() as stack:
        made = await open_world(stack, opener, box)
        await made.grant()
        yield made


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_call_is_asked_about_approved_and_passes_once(world):
    approval_id = await world.ask()
    assert world.box.calls == 0
    assert await world.ask() == approval_id
    (shown,) = (await world.served.client().get(APPROVALS)).json()
    assert (shown["id"], shown["state"], shown["agent_id"]) == (approval_id, "pending", "the-agent")
    assert (shown["server_id"], shown["tool_name"]) == ("box", "delete")
    assert "delete" in shown["risk"]
    assert "/tmp/a" in shown["preview"]
    assert "hunter2" not in str(shown)
    done = await world.decide(approval_id, note="seen")
    assert (done["state"], done["decided_by"], done["note"]) == ("approved", "the-admin", "seen")
    assert await world.passes()
    assert not await world.passes()
    assert (await world.served.client().get(f"{APPROVALS}/{approval_id}")).json()["state"] == "used"


@pytest.mark.req("P-3")
async def test_it_is_bound_to_the_call_as_it_is(world):
    async def approved(args=ARGS) -> None:
        await world.decide(await world.ask(args))

    await approved()
    assert not await world.passes({**ARGS, "path": "/tmp/b"})
    assert not await world.passes({**ARGS, "more": 1})
    assert await world.passes(dict(reversed(ARGS.items())))  # the same, written otherwise
    await approved()
    await world.grant(note="changed")
    assert not await world.passes()
    await approved()
    world.box.tools = [{**tool("delete"), "description": "deletes more"}, tool("look")]
    refreshed = await world.served.client().post(f"{SERVERS}/box/tools/refresh")
    assert refreshed.json()["changed"] == ["delete"], refreshed.text
    assert not await world.passes()


async def test_a_changed_connection_is_another_call(world):
    await world.decide(await world.ask())
    shown = (await world.served.client().get(f"{SERVERS}/box")).json()
    change = {"connection_config": {"url": world.box.url, "headers": {"x-tenant": "b"}}}
    headers = {"if-match": str(shown["version"])}
    answer = await world.served.client().patch(f"{SERVERS}/box", json=change, headers=headers)
    assert answer.status_code == 200, answer.text
    await world.served.until("box", "CONNECTED")
    assert not await world.passes()


async def test_another_way_to_sign_in_to_the_server_is_another_call(world):
    """It decides in whose name the server acts."""
    shown = (await world.served.client().get(f"{SERVERS}/box")).json()
    for token in ("one-token-of-ten", "two-token-of-ten"):
        auth = {"type": "bearer", "token": token}
        change = {"connection_config": {"url": world.box.url, "auth": auth}}
        headers = {"if-match": str(shown["version"])}
        answer = await world.served.client().patch(f"{SERVERS}/box", json=change, headers=headers)
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        await world.served.until("box", "CONNECTED")
        assert not await world.passes()
        await world.decide(await world.ask())
    assert await world.passes()


async def test_the_approval_of_one_agent_lets_no_other_pass(world):
    """Though both may make the same call, and one orchestrator makes it for both."""
    await world.grant(agent_id="another")
    asked = await world.ask(role="orchestrator", agent_id="the-agent")
    await world.decide(asked)
    assert not await world.passes(role="orchestrator", agent_id="another")
    theirs = await world.ask(role="orchestrator", agent_id="another")
    assert theirs != asked
    await world.decide(theirs, "deny")
    assert await world.passes()
    assert not await world.passes(role="orchestrator", agent_id="another")


@pytest.mark.req("P-3")
async def test_what_has_expired_neither_passes_nor_is_decided_about(world):
    await world.grant(token_ttl=0.5)
    approved = await world.ask()
    await world.decide(approved)
    pending = await world.ask({"path": "/tmp/b"})
    async with asyncio.timeout(BOUND):
        for one in (approved, pending):
            while (await world.show(one))["state"] != "expired":  # noqa: ASYNC110 - by time alone
                await asyncio.sleep(0.02)
    await world.grant(token_ttl=900)
    assert not await world.passes()
    refused = await world.decide(pending, status=409)
    assert "it is expired" in refused["error"]["message"]
    assert not await world.passes({"path": "/tmp/b"})


async def test_a_server_registered_anew_under_the_same_name_is_another(world):
    await world.decide(await world.ask())
    config = {"url": world.box.url}
    assert (await world.served.client().delete(f"{SERVERS}/box")).status_code == 204
    body = {"name": "box", "transport_type": "HTTP", "connection_config": config}
    assert (await world.served.client().post(SERVERS, json=body)).status_code == 201
    await world.served.until("box", "CONNECTED")
    assert not await world.passes()
    await world.grant()
    assert not await world.passes()


async def test_a_revoked_grant_and_a_denial_let_nothing_pass(world):
    given = await world.grant()
    await world.decide(await world.ask())
    await world.served.client().delete(f"{MCP}/policies/{given['id']}")
    assert not await world.passes()
    await world.grant()
    approval_id = await world.ask()
    await world.decide(approval_id, "deny", note="not on a Friday")
    answer = await world.invoke()
    assert answer.status_code == 401
    assert "not on a Friday" in answer.json()["error"]["message"]
    await world.decide(approval_id, status=409)
    await world.decide("none", status=404)


async def test_nobody_decides_about_its_own_call_but_an_administrator(world):
    made = await world.ask(role="orchestrator", agent_id="the-agent")
    refused = await world.decide(made, role="orchestrator", status=403)
    assert "of its own" in refused["error"]["message"]
    await world.decide(made, role="agent", status=403)
    await world.decide(made, role="viewer", status=403)
    other = await world.ask({"path": "/tmp/other"})
    await world.decide(other, role="orchestrator")
    mine = await world.ask({"path": "/tmp/mine"}, role="admin", agent_id="the-agent")
    await world.decide(mine)
    assert await world.passes({"path": "/tmp/mine"})  # it is the agent's, whoever makes the call


async def test_the_arguments_are_revealed_to_an_approver_and_that_is_on_record(world):
    approval_id = await world.ask()
    told = await world.decide(approval_id, "reveal")
    assert told["arguments"] == ARGS
    await world.decide(approval_id, "reveal", role="viewer", status=403)
    await world.decide(approval_id, "deny", note="no")
    await world.served.audit.flush()
    rows = await world.served.context.store.audit.rows(AuditQuery(kind="outcome", limit=100))
    assert {"approval.reveal", "approval.deny"} <= {row.action for row in rows}
    assert "hunter2" not in str(rows)
    await world.served.bus.flush()
    events = await world.served.context.store.events.after(0, limit=1000)
    kinds = [one.type for one in events if one.type.startswith("approval.")]
    assert kinds == ["approval.requested", "approval.decided"]
    assert "hunter2" not in str(events)


async def test_an_idempotency_key_does_not_hold_what_was_not_sent(world):
    approval_id = await world.ask(idempotency_key="k1")
    await world.decide(approval_id)
    assert await world.passes(idempotency_key="k1")
    again = await world.invoke(idempotency_key="k1")
    assert again.status_code == 200  # from its record
    assert world.box.calls == 1


@pytest.mark.req("P-3")
async def test_of_fifty_racing_callers_one_passes(world):
    await world.decide(await world.ask())
    answers = await asyncio.gather(*(world.invoke() for _ in range(50)))
    assert [answer.status_code for answer in answers].count(200) == 1
    assert {answer.status_code for answer in answers} == {200, 401}
    assert world.box.calls == 1


@pytest.mark.parametrize("era", ERAS)
async def test_both_eras_are_told_what_to_do(world, era):
    client = await client_of(era).open(world.served, "agent")
    params = {"name": "box.delete", "arguments": ARGS}
    told = (await client.send("tools/call", params))["error"]
    assert told["code"] == -32007
    approval_id = told["data"]["approval_id"]
    assert approval_id in told["message"]
    assert told["data"]["how"] in told["message"]
    assert told["data"]["expires_at"]
    await world.decide(approval_id)
    assert "result" in await client.send("tools/call", params)
    assert (await client.send("tools/call", params))["error"]["code"] == -32007
    assert world.box.calls == 1
    listed = await world.served.call("box.delete", ARGS, role="agent")
    assert (listed.status_code, listed.json()["error_code"]) == (403, "APPROVAL_REQUIRED")


async def test_low_risk_calls_of_the_grant_need_nobody(world):
    await world.grant(tool_name="look")
    body = {"server_id": "box", "tool_name": "look", "params": {}}
    assert (await world.served.client("agent").post(f"{MCP}/invoke", json=body)).status_code == 200


@pytest.mark.req("P-3")
async def test_a_restart_in_between_changes_nothing(opener, box):
    async with AsyncExitStack() as stack:
        first = await open_world(stack, opener, box)
        await first.grant()
        await first.decide(await first.ask())
    async with AsyncExitStack() as stack:
        second = await open_world(stack, opener, box)
        assert await second.passes()
        assert not await second.passes()


async def test_a_call_may_wait_for_its_approval(opener, box):
    async with AsyncExitStack() as stack:
        world = await open_world(stack, opener, box, approval_wait_ms=30_000)
        await world.grant()
        waiting = asyncio.create_task(world.invoke())
        async with asyncio.timeout(BOUND):
            events = world.served.bus.subscribe(0, ("approval.requested",))
            asked = await anext(events)
        await events.aclose()
        await world.decide(asked.data["id"])
        assert (await asyncio.wait_for(waiting, BOUND)).status_code == 200
        assert world.box.calls == 1


async def test_an_agent_cannot_have_too_many_calls_wait(world, monkeypatch):
    monkeypatch.setattr("mcp_junction.governance.approvals.MAX_PENDING", 2)
    await world.ask({"path": "1"})
    await world.ask({"path": "2"})
    refused = await world.invoke({"path": "3"})
    assert "too many calls" in refused.json()["error"]["message"]
    assert await world.ask({"path": "2"})


async def test_of_calls_that_come_at_once_no_more_wait_than_of_others(world, monkeypatch):
    monkeypatch.setattr("mcp_junction.governance.approvals.MAX_PENDING", 3)
    await asyncio.gather(*(world.invoke({"path": str(number)}) for number in range(30)))
    assert len((await world.served.client().get(APPROVALS)).json()) == 3


@pytest.mark.parametrize("limit", [None, {"calls": 1, "per": 3600}])
async def test_a_grant_that_asks_nobody_is_taken_before_one_that_wants_approval(world, limit):
    await world.grant(tool_name="del*", token_mode="window", limits=limit)
    assert await world.passes()
    if limit is None:
        assert await world.passes()
    else:  # it is used up, so that a person has to be asked
        await world.decide(await world.ask())
        assert await world.passes()
        assert not await world.passes()
