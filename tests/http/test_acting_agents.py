"""One key that calls for several agents: nothing of one agent reaches another through it."""

import asyncio
import json
from typing import Any

import pytest
from tests.http.fronts import EVERYTHING, HttpFront
from tests.http.peer_http import HttpPeer
from tests.http.test_doors import post
from tests.keyring import Keys
from tests.plugin_http import stdio_entry

from mcp_junction.eras.tickets import Seal, SealedTask
from mcp_junction.errors import RequestStateError
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import CAPABILITIES_KEY, LATEST_STATELESS, VERSION_KEY

ISOLATED = {"junction": {"isolation": "per-session"}}
MESSAGES = "notifications/message"
SECRET = "s3cr3t-of-ann"

pytestmark = pytest.mark.req("R-ATTRIBUTE")


@pytest.fixture
def key(tmp_path) -> str:
    return Keys(tmp_path / "data").create(Role.ADMIN, "root")[1]


def begin(client: HttpFront, agent: str | None, tool: str, **arguments: Any) -> int:
    """Call a tool for an agent; the id of the call."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if agent is not None:
        params["_meta"] = {"junction/agent-id": agent}
    return client.ask("tools/call", params)


async def told(client: HttpFront, agent: str | None, tool: str, **arguments: Any) -> Any:
    answer = await client.answer(begin(client, agent, tool, **arguments))
    assert "result" in answer, answer
    return answer["result"]["content"][0]["text"]


# -- messages that name no call


@pytest.mark.parametrize("agents", [("ann", "bob"), ("ann", None), (None, "bob")])
async def test_what_a_shared_server_says_of_one_agent_is_not_told_in_a_call_for_another(
    serving, key, agents
):
    first, second = agents
    gateway = await serving({"p": stdio_entry()})
    client = await gateway.front(key=key, capabilities=EVERYTHING)
    await client.names()  # who has seen no list is told of no change
    await told(client, first, "p.echo", word=SECRET)
    await told(client, second, "p.grow", kind="tools", name="_spill")
    await client.heard("notifications/tools/list_changed")
    before = len(client.messages)
    assert await told(client, second, "p._spill") == "spilled"
    dropped = gateway.junction.messages.unattributed
    async with asyncio.timeout(20):
        while dropped["log"] < 1 or dropped["question"] < 3:
            await client.result("ping")
    assert SECRET not in json.dumps(client.messages[before:])


async def test_a_question_during_a_call_is_put_while_one_agent_alone_has_used_the_link(
    serving, key
):
    gateway = await serving({"p": stdio_entry()})
    client = await gateway.front(key=key, capabilities=EVERYTHING)
    asked = begin(client, "ann", "p.ask", method="elicitation/create", params={"message": "?"})
    client.respond(await client.heard("elicitation/create"), {"action": "decline"})
    assert (await client.answer(asked))["result"]
    answer = await told(
        client, "bob", "p.ask", method="elicitation/create", params={"message": "?"}
    )
    assert "which of them this is for is unknown" in answer


# -- links of their own


async def test_an_isolated_server_has_a_process_for_each_agent_of_a_session(serving, key):
    gateway = await serving({"p": {**stdio_entry(), **ISOLATED}})
    client = await gateway.front(key=key, capabilities=EVERYTHING)
    agents = [None, "ann", "bob", "ann", None, "root"]
    pids = [json.loads(await told(client, agent, "p.about"))["pid"] for agent in agents]
    itself, ann, bob, ann_again, itself_again, by_name = pids
    assert ann == ann_again
    assert itself == itself_again == by_name, "who names itself is itself"
    assert len({itself, ann, bob}) == 3
    asked = begin(client, "ann", "p.ask", method="elicitation/create", params={"message": "?"})
    client.respond(await client.heard("elicitation/create"), {"action": "decline"})
    assert (await client.answer(asked))["result"]


async def test_two_sessions_do_not_share_the_process_of_an_agent(serving, key):
    gateway = await serving({"p": {**stdio_entry(), **ISOLATED}})
    one, two = [await gateway.front(key=key) for _ in range(2)]
    pids = [json.loads(await told(client, "ann", "p.about"))["pid"] for client in (one, two)]
    assert pids[0] != pids[1]


class Stateless:
    """Requests of the stateless era with one key, for agents."""

    def __init__(self, gateway: Any, key: str) -> None:
        self._gateway = gateway
        self._key = f"Bearer {key}"

    async def call(self, agent: str | None, tool: str, /, state: str | None = None, **more: Any):
        meta = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {"elicitation": {}}}
        params: dict[str, Any] = {"name": tool, "_meta": meta, **more}
        if state is not None:
            params["requestState"] = state
        headers = {"mcp_protocol_version": LATEST_STATELESS, "mcp_method": "tools/call"}
        headers |= {"mcp_name": tool, "authorization": self._key}
        if agent is not None:
            headers["x_agent_id"] = agent
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return await post(self._gateway, json.dumps(body).encode(), **headers)


async def test_pooled_links_are_not_shared_by_agents(serving, key):
    async with HttpPeer() as peer:
        gateway = await serving({"p": {"url": peer.url}})
        await gateway.settled()
        client = Stateless(gateway, key)
        found = []
        for agent in ("ann", "bob", "ann", None):
            response = await client.call(agent, "p.about", arguments={})
            about = json.loads(response.json["result"]["content"][0]["text"])
            # The id of a request can have a digit more than that of the one before.
            found.append(
                {name: x for name, x in about["context"].items() if name != "content-length"}
            )
        ann, bob, ann_again, itself = found
        assert ann == ann_again
        assert ann != bob != itself != ann


# -- tickets and tasks


async def test_a_ticket_is_good_for_the_agent_that_it_was_given_to(serving, key):
    gateway = await serving({"p": stdio_entry()})
    await gateway.settled()
    client = Stateless(gateway, key)
    arguments = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
    asked = (await client.call("ann", "p.ask", arguments=arguments)).json["result"]
    assert asked["resultType"] == "input_required"
    answers = {question: {"action": "decline"} for question in asked["inputRequests"]}
    given = {"arguments": arguments, "inputResponses": answers}
    for other in ("bob", None, "root"):
        refused = await client.call(other, "p.ask", asked["requestState"], **given)
        assert refused.json["error"]["code"] == -32602, other
        assert "given for something else" in refused.words
    done = await client.call("ann", "p.ask", asked["requestState"], **given)
    assert done.json["result"]["resultType"] == "complete"


def test_the_id_of_a_task_is_good_for_the_agent_that_it_was_given_to():
    root = Principal("root", Role.ADMIN)
    ann, bob = [Principal("root", Role.ADMIN, acting_for=agent) for agent in ("ann", "bob")]
    seal = Seal()
    task = SealedTask("t", "p", "tools", "echo")
    sealed = seal.seal_task(task, ann, "everything")
    assert seal.open_task(sealed, ann, "everything") == task
    for other in (bob, root, Principal("ann", Role.AGENT), Principal("ann", Role.ADMIN)):
        with pytest.raises(RequestStateError):
            seal.open_task(sealed, other, "everything")


# -- quotas


async def test_the_calls_of_one_agent_do_not_use_up_the_quota_of_another(serving, key):
    gateway = await serving({"p": stdio_entry()}, max_calls_per_principal=1)
    client = await gateway.front(key=key)
    await gateway.settled()
    token = {"progressToken": 1, "junction/agent-id": "ann"}
    held = client.ask("tools/call", {"name": "p.hold", "arguments": {}, "_meta": token})
    await client.heard("notifications/progress")
    refused = (await client.answer(begin(client, "ann", "p.echo")))["error"]
    assert refused["code"] == -32003
    assert await told(client, "bob", "p.release") == "released all"
    assert (await client.answer(held))["result"]
    assert await told(client, "ann", "p.echo")
