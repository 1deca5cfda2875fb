"""The door for retry: ``forward`` can run again for one call, in both eras, with progress."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw
from tests.calls.world import BOUND, World, body

from mcp_junction.calls.audit_rows import CallRow
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.methods import address
from mcp_junction.calls.pipeline import ExtraStage
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import envelope, frames, names
from mcp_junction.protocol.versions import (
    CALL_TIMEOUT,
    INTERNAL_ERROR,
    LINK_LOST,
    SERVER_UNAVAILABLE,
    Era,
)
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeUpstream, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

TRANSIENT = {CALL_TIMEOUT, LINK_LOST, SERVER_UNAVAILABLE}
CELLS = [(client, server) for client in Era for server in Era]
ELICIT = "elicitation/create"


# -- the test-only stage


def is_transient(outcome: Outcome) -> bool:
    return outcome.kind is OutcomeKind.ERROR and outcome.code in TRANSIENT


async def retry(call: Call, following: Handler) -> Outcome:
    """Make up to three attempts of a call; a call that is resumed or was ended has one."""
    outcome = await following(call)
    while (
        is_transient(outcome)
        and outcome.attempts < 3
        and not call.is_resume
        and call.ended_by is None
    ):
        outcome = await following(call)
    return outcome


# -- the world around it


class Door:
    """A client of one era before a server of one, whose first attempt is lost somehow."""

    def __init__(self, client: Era, server: Era, lost: str = "link") -> None:
        self.lost = lost
        self.params: list[dict[str, Any]] = []
        self.server = FakeUpstream("one", script=self.answer, era=server, timeout_ms=1000)
        self.server.refused_eras = {*Era} - {server}
        self.world = World(self.server, extra=[ExtraStage("resume", retry)])
        self.rows: list[CallRow] = []
        self.sent: list[bytes] = []
        self.client: Any = self.world.session
        if client is Era.STATELESS:
            asks = {"elicitation": Raw(b"{}")}
            self.client = StatelessClient(LOCAL_OWNER, EVERYTHING, names.STDIO, asks, Raw(b"{}"))
        self.scope = TaskScope("sweep")
        self.scope.spawn(self.world.deadlines.run())

    def answer(self, flight: Flight) -> Outcome | None:
        params = json.loads(flight.params)
        self.params.append(params)
        self.progress(flight, params, len(self.params))
        if len(self.params) > 1:
            return outcomes.result(b'{"resultType":"complete","content":[]}')
        if self.lost == "link":
            return outcomes.link_lost("one", Delivery.UNKNOWN, "it was cut")
        if self.lost == "not sent":
            return outcomes.unavailable("one", "it is not connected")
        return None

    def progress(self, flight: Flight, params: dict[str, Any], step: int) -> None:
        """Say how far it is, as a server does: under the token that it was sent."""
        token = params.get("_meta", {}).get("progressToken")
        assert str(token).encode() == flight.wire_id
        flight.caller.progress({"progressToken": Raw(b"0"), "progress": Raw(b"%d" % step)})

    def call(self, **members: Any) -> Call:
        meta = {"progressToken": "mine"}
        raw = json.dumps({"name": "one:echo", "arguments": {}, "_meta": meta, **members}).encode()
        params = frames.members(raw)
        token = envelope.progress_token(params)
        where = address("tools/call", params)
        return Call(self.client, self.world.snapshot, "tools/call", where, params, self, token)

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    offer = send

    async def run(self, call: Call) -> Outcome:
        running = self.world.start(call)
        await self.world.clock.advance(1.2 if self.lost == "timeout" else 0)
        return await asyncio.wait_for(running, BOUND)

    def record_untrimmed(self, row: CallRow) -> None:
        self.rows.append(row)


@pytest.mark.parametrize("lost", ["link", "not sent", "timeout"])
@pytest.mark.parametrize(("client", "server"), CELLS)
async def test_a_second_attempt_is_a_whole_one(client, server, lost):
    door = Door(client, server, lost)
    call = door.call()
    outcome = await door.run(call)
    assert (outcome.kind, outcome.attempts) == (OutcomeKind.RESULT, 2)
    assert outcome.target == "one:echo"
    heard = [json.loads(frame)["params"] for frame in door.sent]
    assert heard == [{"progressToken": "mine", "progress": step} for step in (1, 2)]
    assert [params["name"] for params in door.params] == ["echo", "echo"]
    first, second = door.server.wire.flights
    assert first.wire_id != second.wire_id
    assert call.spoke
    assert [flight for flight, _ in door.server.wire.cancelled] == [first] * (lost == "timeout")
    assert len(door.world.deadlines) == 0
    (ended,) = door.world.sink.calls
    CallAudit(door).record(ended)
    assert [row.labels.attempts for row in door.rows if row.labels] == [2]
    await door.scope.close()


@pytest.mark.parametrize(("client", "server"), CELLS)
async def test_a_call_that_is_cancelled_is_not_tried_again(client, server):
    door = Door(client, server, "timeout")
    call = door.call()
    running = door.world.start(call)
    await door.world.clock.advance(0.1)
    call.cancel("never mind")
    assert (await running).kind is OutcomeKind.CANCELLED
    assert len(door.server.wire.flights) == 1
    await door.scope.close()


@pytest.mark.parametrize("lost", ["link", "not sent"])
@pytest.mark.parametrize(("client", "server"), CELLS)
async def test_a_call_cancelled_between_attempts_keeps_the_delivery_of_its_last(
    client, server, lost
):
    deliveries = []

    async def cancel_and_retry(call: Call, following: Handler) -> Outcome:
        deliveries.append((await following(call)).delivery)
        call.cancel("never mind")
        return await following(call)

    door = Door(client, server, lost)
    door.world = World(door.server, extra=[ExtraStage("resume", cancel_and_retry)])
    outcome = await door.run(door.call())
    assert deliveries == [Delivery.NOT_SENT if lost == "not sent" else Delivery.UNKNOWN]
    assert (outcome.kind, outcome.delivery) == (OutcomeKind.CANCELLED, deliveries[0])
    assert (outcome.attempts, len(door.server.wire.flights)) == (1, 1)
    assert outcome.target == "one:echo"
    await door.scope.close()


async def test_a_call_that_fails_after_an_answer_may_have_run():
    async def fail(call: Call, following: Handler) -> Outcome:
        await following(call)
        raise RuntimeError("a fault of a stage")

    door = Door(Era.HANDSHAKE, Era.HANDSHAKE)
    door.params = [{}]  # so that it is answered
    door.world = World(door.server, extra=[ExtraStage("resume", fail)])
    outcome = await door.run(door.call())
    assert (outcome.code, outcome.delivery) == (INTERNAL_ERROR, Delivery.UNKNOWN)
    await door.scope.close()


async def test_the_deadline_of_the_call_ends_it_whatever_its_attempts_have_left():
    door = Door(Era.HANDSHAKE, Era.HANDSHAKE, "timeout")
    door.server.wire.script = silence
    call = door.call()
    call.timeout = 1.5
    running = door.world.start(call)
    await door.world.clock.advance(2)
    outcome = await asyncio.wait_for(running, BOUND)
    assert (outcome.code, outcome.attempts) == (CALL_TIMEOUT, 2)
    assert "1.5 s" in outcome.message
    await door.scope.close()


# -- resumes


async def test_a_ticket_is_spent_once_and_a_resume_is_not_tried_again():
    door = Door(Era.STATELESS, Era.STATELESS)
    asks = b'{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}'
    door.server.wire.script = lambda _: outcomes.result(asks)
    state = body(await door.run(door.call()))["requestState"]
    lost = outcomes.link_lost("one", Delivery.UNKNOWN, "it was cut")
    states = []

    def lose(flight: Flight) -> Outcome:
        states.append(json.loads(flight.params)["requestState"])
        return lost

    door.server.wire.script = lose
    outcome = await door.run(door.call(requestState=state))
    assert (outcome.code, outcome.attempts) == (LINK_LOST, 1)
    assert states == ["theirs"], "the server's own state, and once"
    again = await door.run(door.call(requestState=state))
    assert "used before" in again.message
    await door.scope.close()


async def test_the_ticket_of_a_resume_that_was_not_sent_is_good_again():
    door = Door(Era.STATELESS, Era.STATELESS)
    asks = b'{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}'
    door.server.wire.script = lambda _: outcomes.result(asks)
    state = body(await door.run(door.call()))["requestState"]
    door.server.wire.script = lambda _: outcomes.unavailable("one", "it is not connected")
    assert (await door.run(door.call(requestState=state))).delivery is Delivery.NOT_SENT
    door.server.wire.script = lambda _: outcomes.result(b'{"resultType":"complete"}')
    assert (await door.run(door.call(requestState=state))).kind is OutcomeKind.RESULT
    await door.scope.close()


async def test_a_parked_call_goes_on_with_the_time_it_has_left_and_is_not_tried_again():
    door = Door(Era.STATELESS, Era.HANDSHAKE, "timeout")
    door.server.wire.script = silence
    running = door.world.start(door.call())
    await door.world.clock.advance(0.6)
    (flight,) = door.server.wire.waiting
    answers: list[Outcome] = []
    flight.caller.park(ELICIT, Raw(b'{"message":"who?"}'), answers.append)
    asked = await asyncio.wait_for(running, BOUND)
    assert (asked.kind, asked.attempts) == (OutcomeKind.SUSPENDED, 1)
    await door.world.clock.advance(60)  # its time stands still while the client is asked
    replies = {"q1": {"action": "decline"}}
    back = door.call(requestState=body(asked)["requestState"], inputResponses=replies)
    running = door.world.start(back)
    await door.world.clock.advance(0.3)
    assert not running.done()
    assert back.is_resume
    assert back.spoke, "the client was asked something"
    await door.world.clock.advance(0.2)
    outcome = await asyncio.wait_for(running, BOUND)
    assert (outcome.code, outcome.attempts) == (CALL_TIMEOUT, 1)
    assert len(door.server.wire.flights) == 1
    assert len(answers) == 1
    await door.scope.close()
