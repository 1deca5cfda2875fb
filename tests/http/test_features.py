"""Every feature of the handshake era, over every pair of a front and an upstream transport."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.http.fronts import EVERYTHING, Front

Pair = Callable[..., Awaitable[Front]]

FRONTS = ["stdio", "http"]
UPSTREAMS = ["stdio", "http", "sse"]


@pytest.fixture(params=[(front, up) for front in FRONTS for up in UPSTREAMS], ids="-".join)
def pair(request, piped, serving, upstream) -> Pair:
    """A client before a gateway before the peer, which is the server ``p``."""
    front, transport = request.param

    async def connect(capabilities: Any = None, **options: Any) -> Front:
        servers = {"p": await upstream(transport, **options)}
        if front == "stdio":
            return await piped(servers, capabilities=capabilities)
        gateway = await serving(servers, separator=":")
        return await gateway.front(capabilities=capabilities)

    return connect


async def test_tools_are_listed_under_their_prefix_and_called_as_they_are(pair):
    client = await pair()
    names = await client.names()
    assert "p:echo" in names
    assert all(name.startswith("p:") for name in names)
    arguments = {"a": [1, {"b": None}], "ü": "\u2028"}
    said = json.loads(await client.told("p:echo", **arguments))
    assert said == {"name": "echo", "arguments": arguments}
    error = await client.refused("p:fail")
    assert error == {"code": -32050, "message": "this is what was asked for"}


async def test_prompts_are_prefixed_and_their_news_announced(pair):
    client = await pair()
    assert await client.names("prompts") == ["p:greet", "p:part"]
    got = await client.result("prompts/get", {"name": "p:greet", "arguments": {"who": "Ada"}})
    assert got["messages"][0]["content"]["text"] == "greet: hello, Ada"
    assert "unknown prompt" in (await client.error("prompts/get", {"name": "p:no"}))["message"]
    await client.told("p:grow", kind="prompts", name="new")
    await client.heard("notifications/prompts/list_changed")
    assert await client.names("prompts") == ["p:greet", "p:part", "p:new"]
    assert not client.all_heard("notifications/tools/list_changed")


async def test_resources_and_templates_keep_their_addresses(pair):
    client = await pair()
    assert await client.names("resources") == ["note://0", "note://1", "note://2"]
    templates = await client.names("resourceTemplates", "resources/templates/list")
    assert templates == ["note://of/{who}"]
    for uri in ("note://1", "note://of/Ada"):
        read = await client.result("resources/read", {"uri": uri})
        assert read["contents"] == [{"uri": uri, "text": f"it is {uri}"}]
    await client.told("p:grow", kind="resources", name="note://new")
    await client.heard("notifications/resources/list_changed")
    assert "note://new" in await client.names("resources")


async def test_updates_of_a_resource_come_while_it_is_subscribed(pair):
    client = await pair()
    await client.names("resources")
    assert await client.result("resources/subscribe", {"uri": "note://1"}) == {}
    await client.told("p:touch", uri="note://2")
    await client.told("p:touch", uri="note://1")
    updated = await client.heard("notifications/resources/updated")
    assert updated["params"] == {"uri": "note://1"}
    assert await client.result("resources/unsubscribe", {"uri": "note://1"}) == {}
    methods = [message.get("method") for message in await client.read("p:seen")]
    assert methods.count("resources/subscribe") == methods.count("resources/unsubscribe") == 1
    await client.told("p:touch", uri="note://1")
    await client.told("p:echo")
    assert len(client.all_heard("notifications/resources/updated")) == 1


async def test_completions_reach_the_owner_of_the_prompt_or_template(pair):
    client = await pair()
    for ref, known in (
        ({"type": "ref/prompt", "name": "p:greet"}, {"type": "ref/prompt", "name": "greet"}),
        ({"type": "ref/resource", "uri": "note://of/{who}"},) * 2,
    ):
        params = {"ref": ref, "argument": {"name": "who", "value": "A"}}
        (value,) = (await client.result("completion/complete", params))["completion"]["values"]
        assert json.loads(value) == known


async def test_log_messages_of_a_call_come_at_the_level_that_was_set(pair):
    client = await pair()
    await client.told("p:speak", levels=["debug", "error"])
    levels = [m["params"]["level"] for m in client.all_heard("notifications/message")]
    assert levels == ["debug", "error"]
    assert await client.result("logging/setLevel", {"level": "warning"}) == {}
    await client.told("p:speak", levels=["info", "warning", "critical"])
    levels = [m["params"]["level"] for m in client.all_heard("notifications/message")]
    assert levels == ["debug", "error", "warning", "critical"]


async def test_progress_comes_before_the_answer_under_the_clients_own_token(pair):
    client = await pair()
    call = client.begin("p:steps", token="my-token", count=3)
    await client.answer(call)
    steps = [m["params"] for m in client.all_heard("notifications/progress")]
    assert steps == [{"progressToken": "my-token", "progress": n, "total": 3} for n in (1, 2, 3)]
    assert client.messages[-1]["id"] == call


async def test_a_cancelled_call_is_cancelled_at_the_server_under_our_id(pair):
    client = await pair()
    call = await client.under_way("p:hold")
    client.notify("notifications/cancelled", {"requestId": call, "reason": "enough"})
    while not (cancelled := await _seen(client, "notifications/cancelled")):
        pass
    (held,) = [m for m in await _seen(client, "tools/call") if m["params"]["name"] == "hold"]
    assert cancelled[0]["params"] == {"requestId": held["id"], "reason": "enough"}
    assert not [m for m in client.messages if m.get("id") == call and "method" not in m]


async def _seen(client: Front, method: str) -> list[Any]:
    return [m for m in await client.read("p:seen") if m.get("method") == method]


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("sampling/createMessage", {"messages": [], "maxTokens": 9}, {"role": "assistant"}),
        ("elicitation/create", {"message": "Who?"}, {"action": "accept", "content": {"a": 1}}),
        ("roots/list", None, {"roots": [{"uri": "file:///home"}]}),
    ],
)
async def test_a_question_of_a_call_is_put_to_its_client(pair, method, params, answer):
    client = await pair(EVERYTHING)
    call = client.begin("p:ask", method=method, **({"params": params} if params else {}))
    question = await client.heard(method)
    assert question.get("params") == params
    client.respond(question, answer)
    assert json.loads((await client.answer(call))["result"]["content"][0]["text"]) == {
        "result": answer
    }


async def test_a_client_that_cannot_answer_is_not_asked(pair):
    client = await pair({"roots": {}})
    answer = await client.read("p:ask", method="sampling/createMessage", params={})
    assert answer["error"]["code"] == -32601
    assert not client.all_heard("sampling/createMessage")


async def test_changed_roots_are_passed_on(pair):
    client = await pair(EVERYTHING)
    await client.names()
    client.notify("notifications/roots/list_changed")
    while not await _seen(client, "notifications/roots/list_changed"):
        pass


async def test_lists_of_many_pages_are_read_to_their_end(pair):
    client = await pair(page=2, notes=7)
    assert await client.names("resources") == [f"note://{n}" for n in range(7)]
    assert len(await client.names()) == len(set(await client.names())) > 10


async def test_a_question_that_belongs_to_no_call_goes_to_the_only_client(pair):
    client = await pair(EVERYTHING)
    await client.told("p:ask_alone", method="roots/list")
    client.respond(await client.heard("roots/list"), {"roots": []})
    while not [m for m in await client.read("p:seen") if m.get("result") == {"roots": []}]:
        pass


async def test_a_log_message_that_belongs_to_no_call_reaches_the_client(pair):
    client = await pair()
    await client.told("p:log_alone")
    assert (await client.heard("notifications/message"))["params"]["data"] == "for everyone"
