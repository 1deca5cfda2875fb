"""ParkedCalls: who comes back in time goes on, and whoever does not is ended."""

import json

import pytest
from msgspec import Raw

from mcp_junction.eras.parked import ParkedCall, ParkedCalls
from mcp_junction.eras.tickets import Continuation, Seal, TicketOwner
from mcp_junction.errors import RequestStateError
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import RATE_LIMITED
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.testing.link import FakeLink, silence
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.outcome import Outcome, OutcomeKind

QUESTION = "elicitation/create"
ANN = TicketOwner("ann", "agent", "", "files", "read", "tools/call")
BOB = TicketOwner("bob", "agent", "", "files", "read", "tools/call")


class Place:
    """Parked calls of two, for a minute."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.parked_calls = ParkedCalls(self.clock, Seal(), 60.0, 2)
        self.link = FakeLink("files", silence)
        self.answers: list[Outcome] = []

    def parked(self, owner: TicketOwner = ANN) -> ParkedCall:
        """A call with a question."""
        parked = ParkedCall(
            Principal(owner.principal, Role(owner.role)), frozenset({QUESTION, "form"})
        )
        parked.owner = owner
        parked.flight = new_flight("tools/call", parked)
        self.link.send(parked.flight)
        parked.park(QUESTION, Raw(b"{}"), self.answers.append)
        return parked

    def resume(self, state: str, owner: TicketOwner) -> ParkedCall:
        return self.parked_calls.resume(self.parked_calls.seal.open(state, owner))

    def park(self, parked: ParkedCall) -> str:
        outcome = self.parked_calls.park(parked, parked.owner)
        assert outcome.kind is OutcomeKind.SUSPENDED
        result = json.loads(bytes(outcome.payload))
        assert result["resultType"] == "input_required"
        assert list(result["inputRequests"])
        return result["requestState"]


async def test_a_ticket_is_good_once():
    place = Place()
    parked = place.parked()
    state = place.park(parked)
    assert place.resume(state, ANN) is parked
    assert len(place.parked_calls) == 0
    with pytest.raises(RequestStateError, match="used before"):
        place.resume(state, ANN)


async def test_each_round_has_a_ticket_of_its_own():
    place = Place()
    parked = place.parked()
    first = place.park(parked)
    place.resume(first, ANN)
    second = place.park(parked)
    with pytest.raises(RequestStateError):
        place.resume(first, ANN)
    assert place.resume(second, ANN) is parked


async def test_a_foreign_ticket_takes_nothing_away():
    place = Place()
    parked = place.parked()
    state = place.park(parked)
    with pytest.raises(RequestStateError):
        place.resume(state, BOB)
    assert place.resume(state, ANN) is parked


async def test_who_does_not_come_back_is_ended_at_the_server():
    place = Place()
    sweeping = TaskScope("sweep")
    sweeping.spawn(place.parked_calls.run())
    parked = place.parked()
    state = place.park(parked)
    await place.clock.advance(59)
    assert len(place.parked_calls) == 1
    await place.clock.advance(3)
    assert len(place.parked_calls) == 0
    assert place.link.cancelled == [(parked.flight, "the client did not come back")]
    with pytest.raises(RequestStateError):
        place.resume(state, ANN)
    await place.clock.advance(5)
    assert place.clock.sleepers == 0  # what is empty is not swept
    await sweeping.close()


async def test_a_full_limit_ends_the_call():
    place = Place()
    for _ in range(2):
        place.park(place.parked())
    third = place.parked()
    assert place.parked_calls.park(third, ANN).kind is OutcomeKind.ERROR
    assert [flight for flight, _ in place.link.cancelled] == [third.flight]
    assert len(place.parked_calls) == 2


async def test_the_parked_calls_of_one_who_is_gone_are_ended():
    place = Place()
    ann, bob = place.parked(ANN), place.parked(BOB)
    place.park(ann)
    state = place.park(bob)
    place.parked_calls.end(lambda owner: owner.principal == "ann", "the key was revoked")
    assert place.link.cancelled == [(ann.flight, "the key was revoked")]
    assert place.resume(state, BOB) is bob


async def test_the_state_of_a_stateless_server_is_kept_by_the_client_alone():
    place = Place()
    state = place.parked_calls.issue_ticket(ANN, "theirs", Continuation())
    assert len(place.parked_calls) == 0
    assert place.parked_calls.seal.open(state, ANN).inner == "theirs"
    with pytest.raises(RequestStateError):
        place.resume(state, ANN)


async def test_however_many_are_late_one_sweep_ends_them_all_and_no_other():
    place = Place()
    place.parked_calls = ParkedCalls(place.clock, Seal(), 60.0, 1000)
    sweeping = TaskScope("sweep")
    sweeping.spawn(place.parked_calls.run())
    for _ in range(350):
        place.park(place.parked())
    await place.clock.advance(30)
    early = place.parked(BOB)
    state = place.park(early)
    await place.clock.advance(31)
    assert len(place.parked_calls) == 1
    assert len(place.link.cancelled) == 350
    assert place.resume(state, BOB) is early
    await sweeping.close()


@pytest.mark.req("R-QUOTA")
async def test_who_parks_too_many_calls_is_refused_and_nobody_else():
    place = Place()
    first, second = place.park(place.parked(ANN)), place.park(place.parked(ANN))
    third = place.parked(ANN)
    refused = place.parked_calls.park(third, ANN)
    assert (refused.kind, refused.code) == (OutcomeKind.ERROR, RATE_LIMITED)
    assert "max_parked_per_principal" in refused.message
    assert third.flight.future.done(), "its server is told, too"
    states = [place.park(place.parked(BOB)) for _ in range(2)]
    place.resume(first, ANN)
    place.park(place.parked(ANN))
    place.parked_calls.withdraw(second, "enough")
    place.parked_calls.end(lambda owner: owner == BOB, "revoked")
    with pytest.raises(RequestStateError):
        place.resume(states[0], BOB)
    await place.clock.advance(61)
    place.parked_calls.sweep()
    assert len(place.parked_calls) == 0
    assert place.parked_calls._waiting == {}, "nothing is kept of those who have none"
