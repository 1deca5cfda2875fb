"""Several clients before one server: shared links and links of their own, and what is whose."""

import asyncio
import json

import pytest
from tests.http.fronts import EVERYTHING, Front
from tests.http.peer_http import HttpPeer, SsePeer
from tests.keyring import Keys
from tests.plugin_http import stdio_entry

from mcp_junction.policy.principal import Role
from mcp_junction.protocol.versions import CAPABILITIES_KEY, LATEST_STATELESS, VERSION_KEY

TRANSPORTS = ["stdio", "http", "sse"]
ISOLATED = {"junction": {"isolation": "per-session"}}
UPDATED = "notifications/resources/updated"


async def methods_seen(client: Front, server: str = "p") -> list[str]:
    return [message.get("method") for message in await client.read(f"{server}.seen")]


async def seen_at_last(client: Front, method: str, times: int = 1) -> list[str]:
    """What the server has seen, once it has seen this."""
    async with asyncio.timeout(20):
        while (seen := await methods_seen(client)).count(method) < times:
            pass
    return seen


# -- questions on a link that is shared


@pytest.mark.parametrize("transport", ["stdio", "sse"])
async def test_a_question_that_may_be_for_either_of_two_clients_is_refused(
    serving, upstream, transport
):
    gateway = await serving({"p": await upstream(transport)})
    one = await gateway.front(capabilities=EVERYTHING)
    two = await gateway.front(capabilities=EVERYTHING)
    held = await one.under_way("p.hold")
    answer = await two.read("p.ask", method="elicitation/create", params={"message": "Who?"})
    assert "which of them this is for is unknown" in answer["error"]["message"]
    assert not one.all_heard("elicitation/create") + two.all_heard("elicitation/create")

    await two.told("p.release")
    await one.answer(held)
    call = two.begin("p.ask", method="elicitation/create", params={"message": "Who?"})
    two.respond(await two.heard("elicitation/create"), {"action": "decline"})
    assert (await two.answer(call))["result"]
    assert not one.all_heard("elicitation/create")


async def test_over_http_a_question_on_a_calls_stream_is_that_calls(serving, upstream):
    gateway = await serving({"p": await upstream("http")})
    clients = [await gateway.front(capabilities=EVERYTHING) for _ in range(3)]
    calls = [
        client.begin("p.ask", method="elicitation/create", params={"message": str(number)})
        for number, client in enumerate(clients)
    ]
    for number, client in enumerate(clients):
        question = await client.heard("elicitation/create")
        assert question["params"] == {"message": str(number)}
    for number, client in reversed(list(enumerate(clients))):
        (question,) = client.all_heard("elicitation/create")
        client.respond(question, {"content": number})
        answer = await client.answer(calls[number])
        assert json.loads(answer["result"]["content"][0]["text"]) == {"result": {"content": number}}


@pytest.mark.parametrize("kind", [HttpPeer, SsePeer])
async def test_a_question_for_no_call_is_refused_when_there_are_two_clients(serving, kind):
    async with kind() as peer:
        transport = "http" if kind is HttpPeer else "sse"
        gateway = await serving({"p": {"url": peer.url, "type": transport}})
        one = await gateway.front(capabilities=EVERYTHING)
        two = await gateway.front(capabilities=EVERYTHING)
        await one.told("p.ask_alone", method="roots/list")
        refusals = lambda: [v.message for v in peer.visits if "error" in v.message]  # noqa: E731
        (refusal,) = await peer.until(refusals)
        assert "no client to ask roots/list" in refusal["error"]["message"]
        assert not one.all_heard("roots/list") + two.all_heard("roots/list")


async def test_a_question_is_answered_by_its_own_client_only(serving, upstream):
    gateway = await serving({"p": await upstream("http")})
    one = await gateway.front(capabilities=EVERYTHING)
    two = await gateway.front(capabilities=EVERYTHING)
    call = one.begin("p.ask", method="roots/list")
    question = await one.heard("roots/list")
    two.respond(question, {"roots": [{"uri": "file:///stolen"}]})
    await two.result("ping")
    one.respond(question, {"roots": []})
    assert json.loads((await one.answer(call))["result"]["content"][0]["text"]) == {
        "result": {"roots": []}
    }


# -- links of their own


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_with_isolation_each_session_has_its_own_link_and_capabilities(
    serving, upstream, transport
):
    entry = await upstream(transport) | ISOLATED
    gateway = await serving({"p": entry})
    asking = await gateway.front(capabilities={"sampling": {}}, version="2025-06-18")
    quiet = await gateway.front(capabilities={"roots": {}})
    abouts = [await client.read("p.about") for client in (asking, quiet)]
    assert [about["hello"]["capabilities"] for about in abouts] == [{"sampling": {}}, {"roots": {}}]
    assert [about["hello"]["protocolVersion"] for about in abouts] == ["2025-06-18", "2025-11-25"]
    if transport == "stdio":
        assert abouts[0]["pid"] != abouts[1]["pid"]
        assert (await asking.read("p.about"))["pid"] == abouts[0]["pid"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_with_isolation_every_question_finds_its_client(serving, upstream, transport):
    entry = await upstream(transport) | ISOLATED
    gateway = await serving({"p": entry})
    one = await gateway.front(capabilities=EVERYTHING)
    two = await gateway.front(capabilities=EVERYTHING)
    await one.under_way("p.hold")
    call = two.begin("p.ask", method="roots/list")
    two.respond(await two.heard("roots/list"), {"roots": []})
    assert (await two.answer(call))["result"]
    await two.told("p.ask_alone", method="sampling/createMessage", params={})
    await two.heard("sampling/createMessage")
    await two.told("p.log_alone")
    await two.heard("notifications/message")
    two.notify("notifications/roots/list_changed")
    await seen_at_last(two, "notifications/roots/list_changed")
    assert "notifications/roots/list_changed" not in await methods_seen(one)
    assert not [
        m for m in one.messages if "method" in m and m["method"] != "notifications/progress"
    ]


async def test_with_isolation_updates_and_levels_are_the_sessions_own(serving, upstream):
    gateway = await serving({"p": await upstream("stdio") | ISOLATED})
    one, two = await gateway.front(), await gateway.front()
    for client in (one, two):
        await client.result("resources/subscribe", {"uri": "note://1"})
        await client.told("p.echo")
    await one.told("p.touch", uri="note://1")
    await one.heard(UPDATED)
    await one.result("resources/unsubscribe", {"uri": "note://1"})
    assert (await methods_seen(one)).count("resources/unsubscribe") == 1
    await two.told("p.touch", uri="note://1")
    await two.heard(UPDATED)
    assert len(one.all_heard(UPDATED)) == len(two.all_heard(UPDATED)) == 1
    await one.result("logging/setLevel", {"level": "error"})
    assert "logging/setLevel" in await seen_at_last(one, "logging/setLevel")
    await two.told("p.speak", levels=["debug"])
    assert len(two.all_heard("notifications/message")) == 1


async def test_with_isolation_a_change_of_lists_is_still_announced(serving, upstream):
    gateway = await serving({"p": await upstream("stdio") | ISOLATED})
    client = await gateway.front()
    names = await client.names()
    await client.told("p.grow", kind="tools", name="new")
    await client.told("p.echo")
    assert await client.names() == names  # the lists are those of the link all sessions share
    assert await client.told("p.steps", count=1) == "done"
    assert len(list(gateway.junction.servers["p"].extra_links)) == 1


async def test_a_link_of_its_own_ends_with_its_session(serving, upstream):
    gateway = await serving({"p": await upstream("stdio") | ISOLATED})
    leaving, staying = await gateway.front(), await gateway.front()
    await staying.told("p.echo")
    await leaving.told("p.echo")
    (twin,) = [t for t in gateway.junction.servers["p"].extra_links if t.session.calls is not None][
        1:
    ]
    await leaving.delete()
    async with asyncio.timeout(20):
        while twin.current is not None:  # noqa: ASYNC110 - a twin's end is nobody's news
            await asyncio.sleep(0.01)
    assert len(list(gateway.junction.servers["p"].extra_links)) == 1
    assert await staying.told("p.steps", count=1) == "done"


# -- subscriptions


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_is_told_to_stop_when_the_last_one_no_longer_wants_it(
    serving, upstream, transport
):
    gateway = await serving({"p": await upstream(transport)})
    one, two, three = [await gateway.front() for _ in range(3)]
    for client in (one, two):
        await client.result("resources/subscribe", {"uri": "note://1"})
    await three.told("p.touch", uri="note://1")
    for client in (one, two):
        assert (await client.heard(UPDATED))["params"] == {"uri": "note://1"}
    await one.result("resources/unsubscribe", {"uri": "note://1"})
    assert "resources/unsubscribe" not in await methods_seen(one)
    await three.told("p.touch", uri="note://1")
    await two.heard(UPDATED, times=2)
    await two.result("resources/unsubscribe", {"uri": "note://1"})
    assert (await methods_seen(two)).count("resources/unsubscribe") == 1
    assert [len(client.all_heard(UPDATED)) for client in (one, two, three)] == [1, 2, 0]


async def test_a_session_that_ends_no_longer_wants_anything(serving, upstream):
    gateway = await serving({"p": await upstream("stdio")})
    leaving, staying = await gateway.front(), await gateway.front()
    await leaving.result("resources/subscribe", {"uri": "note://1"})
    await leaving.result("resources/subscribe", {"uri": "note://2"})
    await staying.result("resources/subscribe", {"uri": "note://2"})
    await leaving.delete()
    await seen_at_last(staying, "resources/unsubscribe")
    seen = await staying.read("p.seen")
    ended = [m["params"]["uri"] for m in seen if m.get("method") == "resources/unsubscribe"]
    assert ended == ["note://1"]


# -- addresses that two servers have


@pytest.fixture
async def colliding(serving):
    async with HttpPeer(notes=2) as first, SsePeer(notes=3) as second:
        servers = {"a": {"url": first.url}, "b c": {"url": second.url, "type": "sse"}}
        yield await serving(servers)


async def test_an_address_that_two_servers_have_is_listed_twice_and_read_from_each(colliding):
    client = await colliding.front()
    uris = await client.names("resources")
    assert uris == ["note://0", "note://1", "b-c+note://0", "b-c+note://1", "note://2"]
    for uri, own in (("note://1", "note://1"), ("b-c+note://1", "note://1")):
        read = await client.result("resources/read", {"uri": uri})
        assert read["contents"][0]["text"] == f"it is {own}"
    seen = [m for m in await client.read("b c.seen") if m.get("method") == "resources/read"]
    assert [m["params"] for m in seen] == [{"uri": "note://1"}]


async def test_an_address_is_not_looked_for_before_every_server_has_spoken(serving):
    gate = asyncio.Event()
    async with HttpPeer(notes=2) as first, HttpPeer(notes=2) as second:
        answering = first.handler

        async def slowly(visit):
            if visit.rpc == "tools/list":
                await gate.wait()
            await answering(visit)

        first.handler = slowly
        gateway = await serving({"a": {"url": first.url}, "b": {"url": second.url}})
        client = await gateway.front()
        await second.visited("resources/templates/list")
        read = client.ask("resources/read", {"uri": "note://1"})
        await client.result("ping")
        gate.set()
        await client.answer(read)
        assert (len(first.told("resources/read")), len(second.told("resources/read"))) == (1, 0)


async def test_news_of_such_an_address_come_under_the_name_it_was_subscribed_by(colliding):
    client = await colliding.front()
    await client.result("resources/subscribe", {"uri": "b-c+note://1"})
    await client.told("a.touch", uri="note://1")
    await client.told("b c.touch", uri="note://1")
    assert (await client.heard(UPDATED))["params"] == {"uri": "b-c+note://1"}
    await client.told("a.echo")
    assert len(client.all_heard(UPDATED)) == 1


async def test_an_address_stays_its_servers_while_that_one_is_away(serving):
    async with HttpPeer(notes=2) as first, HttpPeer(notes=3) as second:
        gateway = await serving({"a": {"url": first.url}, "b": {"url": second.url}})
        client = await gateway.front()
        await client.names("resources")
        await first.close()
        await client.heard("notifications/resources/list_changed")
        assert await client.names("resources") == ["b+note://0", "b+note://1", "note://2"]
        error = await client.error("resources/read", {"uri": "note://1"})
        assert (error["code"], error["data"]["delivery"]) == (-32000, "not_sent")
        assert "server 'a' is not available" in error["message"]


async def test_a_template_of_two_servers_is_listed_for_each_and_each_can_be_used(colliding):
    client = await colliding.front()
    listed = (await client.result("resources/templates/list"))["resourceTemplates"]
    texts = [t["uriTemplate"] for t in listed]
    assert texts == ["note://of/{who}", "b-c+note://of/{who}"]
    for text in texts:
        await client.result("resources/read", {"uri": text.replace("{who}", "Ada")})
        params = {
            "ref": {"type": "ref/resource", "uri": text},
            "argument": {"name": "who", "value": ""},
        }
        await client.result("completion/complete", params)


# -- logging


async def test_each_client_hears_the_levels_it_asked_for(serving, upstream):
    gateway = await serving({"p": await upstream("stdio")})
    curious, calm = await gateway.front(), await gateway.front()
    await calm.result("logging/setLevel", {"level": "error"})
    await curious.result("logging/setLevel", {"level": "debug"})
    for client in (curious, calm):
        await client.told("p.speak", levels=["debug", "error"])
    heard = [[m["params"]["level"] for m in c.all_heard("notifications/message")]
             for c in (curious, calm)]  # fmt: skip
    assert heard == [["debug", "error"], ["error"]]


@pytest.mark.req("R-ATTRIBUTE")
async def test_a_log_message_for_no_call_is_not_shown_across_principals(serving, tmp_path):
    ring = Keys(tmp_path / "data")
    keys = [ring.create(Role.AGENT, agent)[1] for agent in ("one", "two")]
    gateway = await serving({"p": stdio_entry()})
    one, two = [await gateway.front(key=key) for key in keys]
    await one.told("p.log_alone")
    await one.heard("notifications/message")
    assert not two.all_heard("notifications/message"), "she alone has used the link"
    await two.told("p.echo")
    await one.told("p.speak", levels=["info"])
    await one.told("p.log_alone")
    dropped = gateway.junction.messages.unattributed
    async with asyncio.timeout(20):
        while dropped["log"] < 2:
            await one.result("ping")
    assert [len(c.all_heard("notifications/message")) for c in (one, two)] == [1, 0]


async def test_a_bad_level_is_refused(serving):
    gateway = await serving({})
    client = await gateway.front(listens=False)
    error = await client.error("logging/setLevel", {"level": "loud"})
    assert error["code"] == -32602
    assert "must be one of debug" in error["message"]


async def test_with_isolation_a_listen_hears_of_changes_on_the_link_that_is_everyones(
    serving, upstream
):
    gateway = await serving({"p": await upstream("stdio") | ISOLATED})
    await gateway.settled()
    server = gateway.junction.servers["p"]
    meta = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}}
    wanted = {"resourceSubscriptions": ["note://1"]}
    message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"}
    message["params"] = {"notifications": wanted, "_meta": meta}
    wire = await gateway.wire()
    headers = {"mcp_protocol_version": LATEST_STATELESS, "mcp_method": "subscriptions/listen"}
    wire.request("POST", "/mcp", json.dumps(message).encode(), **headers)
    assert (await wire.head()).is_stream
    events = wire.events()
    assert (await anext(events)).message["params"]["notifications"] == wanted
    await server.request("tools/call", b'{"name":"touch","arguments":{"uri":"note://1"}}', 5.0)
    assert (await anext(events)).message["method"] == UPDATED
    wire.reset()
    async with asyncio.timeout(20):
        while True:
            seen = await server.request("tools/call", b'{"name":"seen","arguments":{}}', 5.0)
            if b"resources/unsubscribe" in bytes(seen.payload):
                break
    assert not server.extra_links._pooled
