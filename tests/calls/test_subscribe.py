"""Subscribe: a server is told to stop when nobody wants more, and not before."""

import json

from msgspec import Raw
from tests.calls.world import World, raw

from mcp_junction.calls.call import Call, Snapshot
from mcp_junction.calls.methods import Address
from mcp_junction.calls.stages.subscribe import Subscriptions
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import RESOURCES, ListItem, ServerLists
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol import names
from mcp_junction.protocol.versions import RATE_LIMITED, RESOURCE_NOT_FOUND
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, StatelessClient, Wanted, subscribe_all
from mcp_junction.testing.link import FakeUpstream, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

URI = "a://1"


class Readers:
    """Two sessions, one server with one resource."""

    def __init__(self, answer: Outcome | None = None) -> None:
        self.server = FakeUpstream("one", script=lambda _: answer or outcomes.result(b"{}"))
        self.world = World()
        offer = ListItem(URI, {"uri": Raw(b'"a://1"')})
        catalog = Catalog().with_offering(
            ServerLists(self.server, resources=(offer,)), ["one", "two"]
        )
        self.snapshot = Snapshot(catalog, self.world.handlers)
        self.one, self.two = (Session(LOCAL_OWNER, names.STDIO, bytes) for _ in range(2))

    async def say(self, session: Session, verb: str, uri: str = URI) -> Outcome:
        target = Address(RESOURCES, uri)
        params = {"uri": raw(uri)}
        call = Call(session, self.snapshot, f"resources/{verb}", target, params, session)
        return await self.snapshot.handle(call)

    def told(self) -> list[str]:
        return [flight.method.rpartition("/")[2] for flight in self.server.wire.flights]

    def wanting(self) -> set[object]:
        return set(self.world.register.names("one", URI))


async def test_a_server_is_told_to_stop_by_the_last_who_wanted_it():
    readers = Readers()
    for session in (readers.one, readers.two):
        assert (await readers.say(session, "subscribe")).kind is OutcomeKind.RESULT
    assert readers.wanting() == {readers.one, readers.two}
    first = await readers.say(readers.one, "unsubscribe")
    assert (first.kind, bytes(first.payload)) == (OutcomeKind.RESULT, b"{}")
    assert readers.told() == ["subscribe", "subscribe"]
    await readers.say(readers.two, "unsubscribe")
    assert readers.told() == ["subscribe", "subscribe", "unsubscribe"]
    assert readers.wanting() == set()


async def test_a_subscription_that_the_server_refused_is_none():
    readers = Readers(outcomes.refused(b'{"code":-1,"message":"no"}'))
    assert (await readers.say(readers.one, "subscribe")).kind is OutcomeKind.ERROR
    assert readers.wanting() == set()


async def test_reading_passes():
    readers = Readers()
    assert (await readers.say(readers.one, "read")).kind is OutcomeKind.RESULT
    assert readers.told() == ["read"]
    assert readers.wanting() == set()


async def test_what_is_not_there_cannot_be_wanted():
    readers = Readers()
    outcome = await readers.say(readers.one, "subscribe", "z://1")
    assert str(RESOURCE_NOT_FOUND).encode() in bytes(outcome.payload)
    assert readers.told() == []


async def test_who_is_about_to_subscribe_counts_when_another_leaves():
    readers = Readers()
    await readers.say(readers.one, "subscribe")
    readers.server.wire.script = silence
    coming = readers.world.tasks.spawn(readers.say(readers.two, "subscribe"))
    await readers.world.clock.advance(0)
    assert (await readers.say(readers.one, "unsubscribe")).kind is OutcomeKind.RESULT
    assert readers.told() == ["subscribe", "subscribe"]
    readers.server.wire.waiting[-1].end(outcomes.result(b"{}"))
    assert (await coming).kind is OutcomeKind.RESULT
    assert readers.wanting() == {readers.two}


async def test_a_subscription_that_stands_survives_one_that_is_refused():
    readers = Readers()
    await readers.say(readers.one, "subscribe")
    readers.server.wire.script = lambda _: outcomes.refused(b'{"code":-1,"message":"no"}')
    assert (await readers.say(readers.one, "subscribe")).kind is OutcomeKind.ERROR
    assert readers.wanting() == {readers.one}


async def test_a_client_has_so_many_subscriptions_and_no_more(monkeypatch):
    monkeypatch.setattr("mcp_junction.calls.stages.subscribe.MAX_SUBSCRIPTIONS", 2)
    readers = Readers()
    names_of = [f"a://{number}" for number in range(1, 4)]
    offers = tuple(ListItem(uri, {"uri": raw(uri)}) for uri in names_of)
    catalog = Catalog().with_offering(ServerLists(readers.server, resources=offers), ["one"])
    readers.snapshot = Snapshot(catalog, readers.world.handlers)
    for uri in names_of[:2]:
        assert (await readers.say(readers.one, "subscribe", uri)).kind is OutcomeKind.RESULT
    refused = await readers.say(readers.one, "subscribe", names_of[2])
    assert (refused.code, refused.delivery) == (RATE_LIMITED, Delivery.NOT_SENT)
    again = await readers.say(readers.one, "subscribe", names_of[0])
    assert again.kind is OutcomeKind.RESULT
    assert (await readers.say(readers.two, "subscribe", names_of[2])).kind is OutcomeKind.RESULT
    await readers.say(readers.one, "unsubscribe", names_of[0])
    assert (await readers.say(readers.one, "subscribe", names_of[2])).kind is OutcomeKind.RESULT
    assert readers.world.register.drop(readers.one) == [("one", names_of[1])]
    assert readers.world.register.subscribers == {readers.two}


async def test_subscriptions_follow_the_name_of_their_server():
    register = Subscriptions()
    register.add("one", URI, "a", URI)
    register.rename("one", "two")
    assert register.of("one") == register.of("one", "a") == []
    assert register.of("two", "a") == [URI]
    register.forget("two")
    assert (register.subscribers, register.of_subscriber("a")) == (set(), [])


class OwnTokens:
    """Credentials of a server where each agent has its own."""

    def __init__(self):
        self.agents = {}

    def for_principal(self, principal):
        if principal is LOCAL_OWNER:
            return self
        return self.agents.setdefault(principal, OwnTokens())


async def test_nobody_subscribes_with_the_credential_of_another():
    readers = Readers()
    readers.server.tokens = OwnTokens()
    readers.two = Session(Principal("ann", Role.AGENT), names.STDIO, bytes)
    assert (await readers.say(readers.one, "subscribe")).kind is OutcomeKind.RESULT
    refused = await readers.say(readers.two, "subscribe")
    assert (refused.kind, refused.delivery) == (OutcomeKind.ERROR, Delivery.NOT_SENT)
    assert "a credential for each agent" in refused.message
    assert "read the resource again from time to time, or connect by init" in refused.message
    assert readers.told() == ["subscribe"]
    assert readers.wanting() == {readers.one}


class Heard:
    """The stream of a client that listens."""

    def __init__(self):
        self.frames = []

    def send(self, frame):
        self.frames.append(json.loads(frame))


async def test_a_client_without_a_session_is_told_why_it_is_not_subscribed():
    readers, heard = Readers(), Heard()
    readers.server.tokens = OwnTokens()
    ann = Principal("ann", Role.AGENT)
    client = StatelessClient(ann, EVERYTHING, names.STDIO, {}, Raw(b"{}"))
    wanted = Wanted(resource_subscriptions=(URI, "z://1"))
    listen = Listen(client, b"7", wanted, heard)
    done = await subscribe_all(listen, readers.snapshot, wanted.resource_subscriptions)
    listen.acknowledge(Wanted(), done)
    (told,) = heard.frames
    assert told["params"]["notifications"] == {}
    refused = told["params"]["_meta"]["junction/refused"]
    assert "read the resource again from time to time" in refused[URI]
    assert list(refused) == [URI, "z://1"]
    assert readers.told() == []


async def test_a_client_that_is_subscribed_to_all_it_wanted_is_told_nothing_more():
    readers, heard = Readers(), Heard()
    client = StatelessClient(LOCAL_OWNER, EVERYTHING, names.STDIO, {}, Raw(b"{}"))
    listen = Listen(client, b"7", Wanted(resource_subscriptions=(URI,)), heard)
    assert await subscribe_all(listen, readers.snapshot, [URI]) == {URI: None}
    listen.acknowledge(Wanted(resource_subscriptions=(URI,)), {})
    (told,) = heard.frames
    assert list(told["params"]["_meta"]) == ["io.modelcontextprotocol/subscriptionId"]
