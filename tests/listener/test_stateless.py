"""StatelessDispatcher: what is remembered of clients, and what waits for the servers."""

import json

import pytest
from msgspec import Raw
from tests.listener.backends import FakeBackend, Recorder, StatelessClient

from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.listener import client_cache as client_cache
from mcp_junction.listener import stateless
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol import encode, requests
from mcp_junction.protocol.versions import CAPABILITIES_KEY, LATEST_STATELESS, VERSION_KEY, Era
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


async def test_resources_are_subscribed_to_when_the_servers_are_up(monkeypatch):
    backend = FakeBackend(settled=False)

    async def subscribe_all(listen, snapshot, uris):
        return dict.fromkeys(uris, None if backend.is_settled else "no server is up")

    monkeypatch.setattr(stateless, "subscribe_all", subscribe_all)
    client = StatelessClient(backend)
    client.listen("a://1")
    await client.turns()
    assert client.sent == []
    backend.settle()
    await client.turns()
    (told,) = client.sent
    assert told["method"] == ACKNOWLEDGED
    assert told["params"]["notifications"]["resourceSubscriptions"] == ["a://1"]
    client.dispatcher.drain()
    await client.turns()


async def test_who_says_the_same_of_itself_is_introduced_once():
    backend = FakeBackend()
    client = StatelessClient(backend)
    for name in ("a", "b", "a"):
        client.request("tools/list", client={"name": name, "version": "0"})
    assert len(backend.stateless_clients) == 2


async def test_who_says_very_much_of_itself_is_not_remembered():
    backend = FakeBackend()
    client = StatelessClient(backend)
    for _ in range(2):
        client.request("tools/list", client={"name": "n" * 10_000, "version": "0"})
    assert [len(m["result"]["tools"]) for m in client.sent] == [0, 0]
    assert len(backend.stateless_clients) == 2
    assert len(client.dispatcher.client_cache) == 0


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize("member", ["client", "can"])
async def test_who_says_too_much_of_itself_is_refused(member):
    client = StatelessClient(FakeBackend())
    for size in (16_300, 16_400):
        client.request("tools/list", **{member: {"name": "n", "x": "y" * size}})
    taken, refused = client.sent
    assert "result" in taken
    assert refused["error"]["code"] == -32602
    assert "at most 16384" in refused["error"]["message"]


async def test_what_belongs_to_one_request_is_not_taken_for_another():
    """Two requests whose senders say the same, but for what each of them wants to be told."""
    said: list[bytes] = []

    def heard(flight: Flight) -> Outcome:
        said.append(flight.params)
        return outcomes.result(b'{"content":[]}')

    backend = FakeBackend(FakeUpstream("up", script=heard, era=Era.STATELESS))
    client = StatelessClient(backend)
    about = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}}
    for number, own in enumerate(({}, {"progressToken": "a"}, {}, {"x.y/trace": 1})):
        params = {"name": "up:echo", "_meta": {**about, **own}}
        client.say({"id": number, "method": "tools/call", "params": params})
        await client.turns()
    metas = [json.loads(params)["_meta"] for params in said]
    assert [sorted(meta.keys() - about.keys()) for meta in metas] == [
        [], ["progressToken"], [], ["x.y/trace"],
    ]  # fmt: skip
    assert len(backend.stateless_clients) == 1


async def test_an_envelope_that_was_seen_is_still_checked_against_the_headers():
    client = StatelessClient(FakeBackend())
    meta = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}}
    line = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    frame = requests.decode(json.dumps(line).encode())
    right = {b"mcp-protocol-version": LATEST_STATELESS.encode(), b"mcp-method": b"tools/list"}
    wrong = {**right, b"mcp-protocol-version": b"2025-11-25"}
    way = Recorder()
    for headers in (right, wrong, right):
        client.dispatcher.answer(LOCAL_OWNER, EVERYTHING, frame, b"1", b"1", way, headers)
    assert [reply.status for reply in way.replies] == [200, 400, 200]


async def test_principals_that_say_the_same_of_themselves_are_told_apart():
    backend = FakeBackend()
    client = StatelessClient(backend)
    ann, bob = Principal("ann", Role.AGENT), Principal("bob", Role.AGENT)
    meta = Raw(encode.dumps({VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}}))
    read = client.dispatcher.client_cache.read
    found = [read(who, EVERYTHING, meta).client for who in (ann, bob, ann, bob)]
    assert [visitor.principal.id for visitor in found] == ["ann", "bob", "ann", "bob"]
    assert found[0] is found[2]
    assert found[1] is found[3]


async def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(client_cache, "MAX_KNOWN", 10)
    client = StatelessClient(FakeBackend())
    for number in range(50):
        client.request("tools/list", client={"name": str(number), "version": "0"}, id=number)
        assert len(client.dispatcher.client_cache) <= 10 + 1
    assert len(client.sent) == 50
