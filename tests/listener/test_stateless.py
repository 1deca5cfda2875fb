"""StatelessDispatcher: what is remembered of clients, and what waits for the servers."""

from tests.listener.backends import FakeBackend, StatelessClient

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


async def test_resources_are_subscribed_to_when_the_servers_are_up():
    backend = FakeBackend(settled=False)
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
    assert len(backend.visitors) == 2


async def test_who_says_very_much_of_itself_is_not_remembered():
    backend = FakeBackend()
    client = StatelessClient(backend)
    for _ in range(2):
        client.request("tools/list", client={"name": "n" * 10_000, "version": "0"})
    assert [len(m["result"]["tools"]) for m in client.sent] == [0, 0]
    assert len(backend.visitors) == 2
    assert not client.dispatcher._visitors
