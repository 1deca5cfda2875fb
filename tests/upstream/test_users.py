"""A link remembers whether nobody, one principal or several have used it, and what follows."""

import asyncio

import pytest
from tests.upstream.dialogue import Dialogue, Listening

from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.link import LinkUsers
from mcp_junction.upstream.outcome import Delivery

ANN, BOB = Principal("ann", Role.AGENT, "k1"), Principal("bob", Role.AGENT, "k2")
LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
QUESTION = b'{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}'


@pytest.fixture
async def talk():
    dialogue = Dialogue()
    yield dialogue
    await dialogue.multiplexer.close("the test is over")


async def asked(talk: Dialogue) -> dict:
    """The answer to a question of the server's."""
    talk.written()
    talk.hear(QUESTION)
    for _ in range(4):
        await asyncio.sleep(0)
    (answer,) = talk.written()
    return answer


def test_two_keys_of_one_principal_are_one_and_a_second_principal_stays_noted():
    users = LinkUsers()
    assert (users.only, users.has_several) == (None, False)
    users.note(ANN)
    users.note(Principal("ann", Role.AGENT, "another key"))
    assert users.only is ANN
    users.note(BOB)
    users.note(ANN)
    assert (users.only, users.has_several) == (None, True)


@pytest.mark.parametrize("now", ["nothing", "own", "the other"])
@pytest.mark.req("R-ATTRIBUTE")
async def test_after_a_second_principal_nothing_is_attributed_whoever_has_calls_now(talk, now):
    ann, bob = Listening("ann", principal=ANN), Listening("bob", principal=BOB)
    talk.answer(talk.fly(caller=ann))
    talk.answer(talk.fly(caller=bob))
    if now != "nothing":
        talk.fly(caller=ann if now == "own" else bob)
    talk.hear(LOG)
    answer = await asked(talk)
    assert answer["error"]["code"] == INVALID_REQUEST
    assert "per-session" in answer["error"]["message"]
    assert [one.logs + one.questions for one in (ann, bob)] == [[], []]
    assert talk.ear.heard_frames == []
    methods = ["notifications/message", "sampling/createMessage"]
    assert talk.ear.unattributed_methods == methods


@pytest.mark.req("R-ATTRIBUTE")
async def test_a_call_that_was_given_up_counts_like_one_that_ended(talk):
    ann, bob = Listening("ann", principal=ANN), Listening("bob", principal=BOB)
    flight = talk.fly(caller=ann)
    flight.link = talk.multiplexer
    flight.abandon(outcomes.cancelled("enough", Delivery.UNKNOWN), "enough")
    talk.fly(caller=bob)
    talk.hear(LOG)
    assert (await asked(talk))["error"]["code"] == INVALID_REQUEST
    assert bob.logs + bob.questions == []


@pytest.mark.req("R-ATTRIBUTE")
async def test_before_anyone_has_used_the_link_nobody_is_told_or_asked(talk):
    talk.fly("tools/list")
    talk.hear(LOG)
    assert (await asked(talk))["error"]["code"] == METHOD_NOT_FOUND
    assert talk.ear.heard_frames == []
    assert len(talk.ear.unattributed_methods) == 2


@pytest.mark.req("R-ATTRIBUTE")
async def test_what_comes_late_on_the_stream_of_a_call_that_ended_is_not_the_next_ones(talk):
    ann, bob = Listening("ann", principal=ANN), Listening("bob", principal=BOB)
    first = talk.fly(caller=ann)
    talk.answer(first)
    talk.fly(caller=bob)
    talk.multiplexer.receive(LOG, on=first)
    talk.multiplexer.receive(QUESTION, on=first)
    assert bob.logs + bob.questions == []
    assert talk.ear.heard_frames == []


async def test_a_call_on_a_stream_of_its_own_is_attributed_whoever_else_there_is(talk):
    ann, bob = Listening("ann", principal=ANN), Listening("bob", principal=BOB)
    talk.fly(caller=ann)
    own = talk.fly(caller=bob)
    talk.multiplexer.receive(LOG, on=own)
    assert (ann.logs, bob.logs) == ([], [{"level": "info", "data": "x"}])
