"""ParkedCall: a flight that outlives the request it came with, and what its server asks."""

import asyncio
import json

import pytest
from msgspec import Raw
from tests.upstream.dialogue import Listening

from mcp_junction.eras.parked import MAX_QUESTIONS, ParkedCall
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeLink, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.multiplexer import Multiplexer
from mcp_junction.upstream.outcome import Outcome, OutcomeKind

ANN = Principal("ann", Role.AGENT)
ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"
RESULT = outcomes.result(b'{"content":[]}')


class Waiting:
    """A call that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def progress(self, params: dict[str, Raw]) -> None:
        self.heard.append(params)

    def log(self, params: Raw) -> None:
        self.heard.append(params)


class Journey:
    """A parked call on a flight that has been sent, and the server's end of it."""

    def __init__(self, *capabilities: str, by: Principal = ANN) -> None:
        self.link = FakeLink("files", silence)
        self.parked = ParkedCall(by, frozenset(("form", *(capabilities or (ELICIT,)))))
        self.flight = self.parked.flight = new_flight("tools/call", self.parked)
        self.link.send(self.flight)
        self.answers: list[Outcome] = []
        self.tasks = TaskScope("journey")

    def asks(self, method: str = ELICIT, params: bytes = b"{}"):
        return self.parked.park(method, Raw(params), self.answers.append)

    def waiting(self, waiting_call: Waiting | None = None) -> asyncio.Task[Outcome | None]:
        return self.tasks.spawn(self.parked.wait(waiting_call or Waiting()))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_end_of_the_flight_is_news():
    journey = Journey()
    waiting = journey.waiting()
    await turns()
    assert not waiting.done()
    journey.flight.end(RESULT)
    assert await waiting is RESULT


async def test_a_client_without_urls_is_not_sent_to_one():
    journey = Journey()
    assert journey.asks(params=b'{"mode":"url","url":"https://x/"}') is None
    (refused,) = journey.answers
    assert refused.code == INVALID_PARAMS
    assert "elicitation by url" in refused.message
    assert not journey.parked.questions


async def test_questions_are_news_and_those_that_come_together_are_asked_together():
    journey = Journey(ELICIT, SAMPLE)
    waiting = journey.waiting()
    await turns()
    journey.asks(ELICIT, b'{"message":"who?"}')
    journey.asks(SAMPLE)
    assert await waiting is None
    asked = {key: json.loads(bytes(raw)) for key, raw in journey.parked.input_requests().items()}
    assert asked == {
        "q1": {"method": ELICIT, "params": {"message": "who?"}},
        "q2": {"method": SAMPLE, "params": {}},
    }


async def test_a_question_that_came_while_nobody_waited_is_news_at_once():
    journey = Journey()
    journey.asks()
    assert await journey.waiting() is None
    assert journey.parked.is_asked


async def test_a_question_that_is_taken_back_is_not_asked():
    journey = Journey()
    waiting = journey.waiting()
    await turns()
    question = journey.asks()
    await asyncio.sleep(0)  # it has been heard of, and is about to be put
    question.cancel()
    await turns()
    assert not waiting.done()
    journey.flight.end(RESULT)
    assert await waiting is RESULT


async def test_what_is_answered_goes_to_the_server_and_the_rest_is_asked_again():
    journey = Journey()
    journey.asks()
    journey.asks()
    journey.parked.give_answers({"q1": Raw(b'{"action":"accept"}'), "q9": Raw(b"{}")})
    assert [bytes(answer.payload) for answer in journey.answers] == [b'{"action":"accept"}']
    assert list(journey.parked.input_requests()) == ["q2"]
    journey.parked.give_answers({"q1": Raw(b"{}")})
    assert len(journey.answers) == 1


async def test_a_client_is_not_asked_what_it_cannot_answer():
    journey = Journey(ELICIT)
    assert journey.asks(SAMPLE) is None
    assert [answer.code for answer in journey.answers] == [METHOD_NOT_FOUND]
    assert not journey.parked.is_asked


async def test_a_server_may_not_ask_without_end():
    journey = Journey()
    for _ in range(MAX_QUESTIONS + 1):
        journey.asks()
    assert len(journey.parked.questions) == MAX_QUESTIONS
    assert [answer.kind for answer in journey.answers] == [OutcomeKind.ERROR]


async def test_what_the_server_says_reaches_who_waits_and_nobody_else():
    journey, waiting_call = Journey(), Waiting()
    journey.parked.log(Raw(b'{"data":"early"}'))
    waiting = journey.waiting(waiting_call)
    await turns()
    journey.parked.progress({"progress": Raw(b"1")})
    journey.parked.log(Raw(b'{"data":"now"}'))
    journey.asks()
    await waiting
    journey.parked.log(Raw(b'{"data":"late"}'))
    assert waiting_call.heard == [{"progress": Raw(b"1")}, Raw(b'{"data":"now"}')]


async def test_an_abandoned_call_is_ended_at_the_server():
    journey = Journey()
    journey.asks()
    journey.parked.abandon(RESULT, "nobody comes")
    assert journey.link.cancelled == [(journey.flight, "nobody comes")]
    assert journey.flight.future.result() is RESULT
    assert not journey.parked.is_asked


async def test_all_that_the_only_call_on_a_pipe_asks_at_once_is_its_own():
    journey, wire = Journey(ELICIT, SAMPLE), []
    exchange = Multiplexer("files", wire.append, Listening())
    exchange.encode_request(journey.flight)
    for method in (ELICIT, SAMPLE):
        exchange.receive(b'{"jsonrpc":"2.0","id":"%b","method":"%b"}' % ((method.encode(),) * 2))
    assert [question.method for question in journey.parked.questions.values()] == [ELICIT, SAMPLE]
    assert wire == []


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_question_is_not_guessed_to_be_one_of_two_that_wait(is_over):
    """A server may go on with a call that was given up, and ask what is for its caller alone."""
    wire: list[bytes] = []
    exchange = Multiplexer("files", wire.append, Listening())
    for journey in (Journey(by=Principal("bob", Role.AGENT)), Journey()):
        exchange.encode_request(journey.flight)
        if is_over and journey.parked.principal.id == "bob":
            exchange.cancel(journey.flight, "he left")
            wire.clear()
        else:
            journey.asks()
    exchange.receive(b'{"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{}}')
    await turns()
    (answer,) = [json.loads(line) for line in wire]
    assert "several clients" in answer["error"]["message"]


async def test_no_question_is_left_open_when_the_call_is_over():
    """A server that does not heed a cancellation would wait for ever, and we would remember."""
    for end in ("abandoned", "landed"):
        journey, wire = Journey(), []
        exchange = Multiplexer("files", wire.append, Listening())
        exchange.encode_request(journey.flight)
        exchange.receive(b'{"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{}}')
        assert journey.parked.is_asked
        if end == "abandoned":
            journey.parked.abandon(RESULT, "nobody comes")
        else:
            journey.flight.end(RESULT)
            assert await journey.waiting() is RESULT
        (answer,) = [json.loads(line) for line in wire]
        assert (answer["id"], answer["error"]["code"]) == ("s1", METHOD_NOT_FOUND)
        assert not exchange._pending
