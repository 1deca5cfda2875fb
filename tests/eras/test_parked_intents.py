"""Strict audit: the intent of a parked call is open until the call ends, however it does."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from tests.calls.world import BOUND, body
from tests.eras.test_adapters import QUESTION, Stateless
from tests.fakes.pipeline_parts import PARKED_SECONDS

from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.store.audit_records import AuditQuery, AuditRow
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import OutcomeKind

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
DECLINED = {"q1": {"action": "decline"}}


class AuditedClient(Stateless):
    """A stateless client whose calls the strict audit records."""

    def __init__(self, store: Any, log: Any) -> None:
        self.store, self.log = store, log
        self.sent = asyncio.Event()
        super().__init__(FakeUpstream("one", script=self.take), CallAudit(log))

    def take(self, flight: Flight) -> None:
        self.sent.set()

    @property
    def flight(self) -> Flight:
        (flight,) = self.server.wire.flights
        return flight

    async def park(self) -> str:
        """Call, and be asked something; return the ``requestState`` to come back with."""
        running = self.world.start(self.call())
        await asyncio.wait_for(self.sent.wait(), BOUND)  # after the intent is stored
        self.ask()
        return body(await asyncio.wait_for(running, BOUND))["requestState"]

    def ask(self) -> None:
        self.flight.caller.park(QUESTION, Raw(b'{"message":"who?"}'), lambda _: None)

    async def open_intents(self) -> list[AuditRow]:
        await self.log.flush()
        return await self.store.audit.open_intents([self.log.writer])

    async def call_rows(self) -> list[AuditRow]:
        """The rows of calls, oldest first."""
        rows = await self.store.audit.rows(AuditQuery(limit=100))
        return [row for row in rows[::-1] if row.action == "tools/call"]


@pytest.fixture
async def client(store, opener) -> AuditedClient:
    return AuditedClient(store, await opener.log(store))


def reference(row: AuditRow) -> str:
    return f"{row.writer}:{row.seq}"


async def test_the_resumed_call_closes_the_intent_of_the_parked_one(client):
    state = await client.park()
    (intent,) = await client.open_intents()
    back = client.call(requestState=state, inputResponses=DECLINED)
    running = client.world.start(back)
    await client.world.clock.advance(0)
    assert len(await client.open_intents()) == 1, "the server still works"
    client.flight.end(outcomes.result(b'{"content":[]}'))
    assert (await asyncio.wait_for(running, BOUND)).kind is OutcomeKind.RESULT
    assert await client.open_intents() == []
    rows = await client.call_rows()
    assert [(row.kind, row.outcome) for row in rows] == [
        ("intent", None),
        ("call", "input_required"),
        ("outcome", "ok"),
    ]
    assert rows[-1].closes == reference(intent)


async def test_an_intent_stays_open_through_every_round_of_questions(client):
    state = await client.park()
    running = client.world.start(client.call(requestState=state, inputResponses=DECLINED))
    await client.world.clock.advance(0)
    client.ask()
    assert (await asyncio.wait_for(running, BOUND)).kind is OutcomeKind.SUSPENDED
    assert len(await client.open_intents()) == 1
    assert [row.kind for row in await client.call_rows()] == ["intent", "call", "call"]


@pytest.mark.parametrize("ending", ["expiry", "withdrawal", "revocation"])
async def test_the_end_of_an_abandoned_call_closes_its_intent(client, ending):
    state = await client.park()
    (intent,) = await client.open_intents()
    parked = client.world.parked_calls
    if ending == "expiry":
        await client.world.clock.advance(PARKED_SECONDS)
        parked.sweep()
    elif ending == "withdrawal":
        parked.withdraw(state, "cancelled by the client")
    else:
        parked.end(lambda owner: True, "the key was revoked")
    assert len(client.server.wire.cancelled) == 1
    assert await client.open_intents() == []
    last = (await client.call_rows())[-1]
    assert (last.kind, last.outcome, last.delivery) == ("outcome", "error", "unknown")
    assert (last.closes, last.target, last.server_id) == (
        reference(intent),
        intent.target,
        intent.server_id,
    )


async def test_a_call_over_the_limit_of_parked_ones_leaves_no_open_intent(client):
    client.world.parked_calls._limit = 0
    running = client.world.start(client.call())
    await asyncio.wait_for(client.sent.wait(), BOUND)
    client.ask()
    assert (await asyncio.wait_for(running, BOUND)).kind is OutcomeKind.ERROR
    assert await client.open_intents() == []
