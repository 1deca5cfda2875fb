"""Requests of a server's own: who is asked, and that the server is always answered."""

import asyncio
import json

import pytest
from msgspec import Raw
from tests.upstream.dialogue import Dialogue, Listening

from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.versions import INTERNAL_ERROR, INVALID_REQUEST
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

QUESTION = b'{"jsonrpc":"2.0","id":%b,"method":"sampling/createMessage","params":{"x":1}}'


class Slow(Listening):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.free = asyncio.Event()
        self.dropped = 0

    async def ask(self, method: str, params: Raw) -> Outcome:
        self.questions.append(method)
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        return outcomes.result(b"{}")


@pytest.fixture
async def talk() -> Dialogue:
    return Dialogue()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_ping_is_answered_at_once(talk):
    talk.hear(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
    assert talk.written() == [{"jsonrpc": "2.0", "id": "p", "result": {}}]


@pytest.mark.parametrize("method", ["ping", "sampling/createMessage", "roots/list"])
async def test_a_stateless_server_may_not_ask_anything(talk, method):
    caller = Listening("caller")
    talk.multiplexer.is_stateless = True
    talk.fly(caller=caller)
    talk.written()
    talk.hear(b'{"jsonrpc":"2.0","id":7,"method":"%b"}' % method.encode())
    await turns()
    (answer,) = talk.written()
    assert (answer["id"], answer["error"]["code"]) == (7, INVALID_REQUEST)
    assert caller.questions == []


async def test_with_one_call_in_the_air_its_caller_is_asked(talk):
    caller = Listening("caller")
    talk.fly(caller=caller)
    talk.written()
    talk.hear(QUESTION % b"1")
    await turns()
    assert talk.written() == [{"jsonrpc": "2.0", "id": 1, "result": {"answered by": "caller"}}]
    assert caller.questions == ["sampling/createMessage"]


@pytest.mark.parametrize("callers", [2, 3])
async def test_with_calls_of_one_session_in_the_air_that_session_is_asked(talk, callers):
    session = object()
    for _ in range(callers):
        talk.fly(caller=Listening("caller", session))
    talk.fly("tools/list")
    talk.written()
    talk.hear(QUESTION % b'"q"')
    await turns()
    assert talk.written() == [{"jsonrpc": "2.0", "id": "q", "result": {"answered by": "caller"}}]


@pytest.mark.parametrize("callers", [2, 3])
async def test_with_calls_of_several_sessions_in_the_air_nobody_is_asked(talk, callers):
    aboard = [Listening("caller") for _ in range(callers)]
    for caller in aboard:
        talk.fly(caller=caller)
    talk.written()
    talk.hear(QUESTION % b'"q"')
    await turns()
    (refusal,) = talk.written()
    assert (refusal["id"], refusal["error"]["code"]) == ("q", INVALID_REQUEST)
    assert "several clients" in refusal["error"]["message"]
    assert [listening.questions for listening in (*aboard, talk.ear)] == [[]] * (callers + 1)


async def test_on_a_stream_of_its_own_a_question_is_that_calls_whoever_else_flies(talk):
    mine = talk.fly(caller=Listening("mine"))
    talk.fly(caller=Listening("another"))
    talk.written()
    talk.multiplexer.receive(QUESTION % b"1", on=mine)
    await turns()
    assert talk.written() == [{"jsonrpc": "2.0", "id": 1, "result": {"answered by": "mine"}}]


async def test_when_no_call_is_in_the_air_the_ear_is_asked(talk):
    talk.multiplexer.users.note(LOCAL_OWNER)
    talk.hear(QUESTION % b'"q"')
    await turns()
    assert talk.written() == [{"jsonrpc": "2.0", "id": "q", "result": {"answered by": "ear"}}]


@pytest.mark.parametrize("sessions", [0, 1, 2])
async def test_a_log_message_goes_to_the_one_session_it_can_be_for_else_to_the_ear(talk, sessions):
    aboard = [Listening("caller") for _ in range(sessions)]
    for caller in aboard:
        talk.fly(caller=caller)
    talk.hear(
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}'
    )
    told = [caller.logs for caller in aboard]
    assert told == ([[{"level": "info", "data": 1}]] if sessions == 1 else [[]] * sessions)
    assert len(talk.ear.heard_frames) == (sessions == 2)
    assert talk.ear.unattributed_methods == ([] if sessions else ["notifications/message"])


async def test_during_a_request_of_our_own_the_ear_is_asked(talk):
    talk.multiplexer.users.note(LOCAL_OWNER)
    talk.fly("tools/list")
    talk.written()
    talk.hear(QUESTION % b"1")
    await turns()
    assert talk.written()[0]["result"] == {"answered by": "ear"}


async def test_a_refusal_is_passed_on_as_an_error(talk):
    class Refusing(Listening):
        async def ask(self, method: str, params: Raw) -> Outcome:
            return outcomes.refused(b'{"code":-1,"message":"no"}')

    talk.fly(caller=Refusing())
    talk.written()
    talk.hear(QUESTION % b"1")
    await turns()
    assert talk.written() == [{"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}]


async def test_a_server_may_have_only_so_many_questions_open(talk):
    slow = Slow()
    talk.fly(caller=slow)
    talk.written()
    for number in range(70):
        talk.hear(QUESTION % (b"%d" % number))
    await turns()
    refused = talk.written()
    assert [frame["id"] for frame in refused] == list(range(64, 70))
    assert {frame["error"]["code"] for frame in refused} == {INTERNAL_ERROR}
    slow.free.set()
    await turns()
    assert [frame["id"] for frame in talk.written()] == list(range(64))
    talk.hear(QUESTION % b"99")
    await turns()
    assert [frame["id"] for frame in talk.written()] == [99], "there is room again"


async def test_a_question_that_the_server_withdraws_is_dropped(talk):
    slow = Slow()
    talk.fly(caller=slow)
    talk.written()
    talk.hear(QUESTION % b"7")
    await turns()
    talk.hear(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}')
    await turns()
    assert slow.dropped == 1
    assert talk.written() == []


async def test_when_the_link_is_gone_open_questions_are_dropped(talk):
    slow = Slow()
    talk.fly(caller=slow)
    talk.hear(QUESTION % b"7")
    await turns()
    await talk.multiplexer.close("gone")
    assert slow.dropped == 1


@pytest.mark.req("R-ANSWER")
async def test_a_question_that_cannot_be_read_is_refused_and_fails_no_call(talk):
    """Its id is of the server's choosing, and may look like one of ours."""
    flight = talk.fly()
    talk.written()
    talk.hear((QUESTION % flight.wire_id).replace(b"1}", b"NaN}"))
    (frame,) = talk.written()
    assert frame["id"] == int(flight.wire_id)
    assert frame["error"]["code"] == INVALID_REQUEST
    assert not flight.future.done()
    talk.answer(flight, json.dumps({"n": 1}).encode())
    assert bytes(flight.future.result().payload) == b'{"n": 1}'
