"""Between the eras: what a stateless client brings back, and how either is asked."""

import json
from typing import Any

import pytest
from msgspec import Raw
from tests.calls.world import World, body, seen

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import address
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS, Route
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import frames, names
from mcp_junction.protocol.versions import (
    CALL_TIMEOUT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LATEST_HANDSHAKE,
    LINK_LOST,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    SERVER_INFO_KEY,
    SERVER_UNAVAILABLE,
    Era,
)
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.testing.link import FakeUpstream, echo, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.handshake import Greeting
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

QUESTION = "elicitation/create"


class Stateless:
    """A client that can be asked, before a server that is silent until the test speaks for it."""

    def __init__(
        self, server: FakeUpstream | None = None, strict_audit: CallAudit | None = None
    ) -> None:
        self.server = server or FakeUpstream("one", script=silence)
        self.server.refused_eras = {Era.STATELESS}
        self.world = World(self.server, strict_audit=strict_audit)
        capabilities = {"elicitation": Raw(b"{}")}
        self.caller = StatelessClient(
            LOCAL_OWNER, EVERYTHING, names.STDIO, capabilities, Raw(b"{}")
        )

    def call(self, **members: Any) -> Call:
        params = frames.members(json.dumps({"name": "one:echo", **members}).encode())
        what = "tools/call", address("tools/call", params), params
        return Call(self.caller, self.world.snapshot, *what, self.caller)

    def route(self) -> Route:
        found = self.world.snapshot.catalog.view(names.STDIO, TOOLS).find("one:echo")
        assert found is not None
        return found

    async def asked(self) -> dict[str, Any]:
        """Call, and be asked something: what the client is answered."""
        running = self.world.start(self.call())
        await self.world.clock.advance(0)
        flight = self.server.wire.waiting[-1]
        self.answers: list[Outcome] = []
        flight.caller.park(QUESTION, Raw(b'{"message":"who?"}'), self.answers.append)
        return body(await running)


async def test_a_client_that_comes_back_with_the_answer_has_its_result():
    client = Stateless()
    asked = await client.asked()
    assert asked["inputRequests"] == {"q1": {"method": QUESTION, "params": {"message": "who?"}}}
    replies = {"q1": {"action": "decline"}}
    back = client.call(requestState=asked["requestState"], inputResponses=replies)
    running = client.world.start(back)
    await client.world.clock.advance(0)
    assert body(client.answers[0]) == {"action": "decline"}
    client.server.wire.waiting[-1].end(outcomes.result(b'{"content":[]}'))
    assert seen(await running)["resultType"] == "complete"


@pytest.mark.parametrize(
    "said", [b'{"content":[]}', b'{ "content":[]}', b'{"_meta":{"a":1}}', b"{}"]
)
async def test_what_a_client_is_sent_beside_the_words_of_an_older_server_is_ours(said):
    client = Stateless(FakeUpstream("one", script=lambda _: outcomes.result(said)))
    outcome = await client.world.run(client.call())
    words, sent = json.loads(said), seen(outcome)
    assert sent.pop("resultType") == "complete"
    assert sent["_meta"].pop(SERVER_INFO_KEY)["name"]
    assert sent == {"_meta": {}, **words}


async def test_a_handshake_call_ends_without_the_envelope_of_its_stateless_server():
    result = b'{"resultType":"complete","content":[],"_meta":{"own":1}}'
    server = FakeUpstream("one", script=lambda _: outcomes.result(result), era=Era.STATELESS)
    server.refused_eras = {Era.HANDSHAKE}
    world = World(server)
    outcome = await world.run(world.call())
    (ended,) = world.sink.calls
    assert body(outcome) == {"content": [], "_meta": {"own": 1}}
    assert ended.outcome.payload == outcome.payload, "the audit has what the client has"
    assert not outcome.is_enveloped


async def test_what_is_recorded_of_a_call_is_what_its_older_server_said():
    said = b'{"content":[]}'
    client = Stateless(FakeUpstream("one", script=lambda _: outcomes.result(said)))
    assert (await client.world.run(client.call())).payload == said


async def test_a_question_the_client_cannot_answer_is_refused_and_the_call_goes_on():
    client = Stateless()
    call = client.call()
    running = client.world.start(call)
    await client.world.clock.advance(0)
    flight, answers = client.server.wire.waiting[-1], []
    flight.caller.park("sampling/createMessage", Raw(b"{}"), answers.append)
    assert [answer.code for answer in answers] == [METHOD_NOT_FOUND]
    flight.end(outcomes.result(b'{"content":[]}'))
    assert seen(await running)["resultType"] == "complete"


async def test_what_cannot_be_answered_with_a_question_is_asked_none():
    client = Stateless()
    said = {"ref": {"type": "ref/prompt", "name": "one:p"}, "argument": {"name": "a", "value": "b"}}
    params = frames.members(json.dumps(said).encode())
    what = "completion/complete", address("completion/complete", params), params
    call = Call(client.caller, client.world.snapshot, *what, client.caller)
    call.route = client.route()
    running = client.world.start(call)
    await client.world.clock.advance(0)
    flight, answers = client.server.wire.waiting[-1], []
    flight.caller.park(QUESTION, Raw(b"{}"), answers.append)
    assert [answer.code for answer in answers] == [METHOD_NOT_FOUND]
    flight.end(outcomes.result(b'{"completion":{"values":[]}}'))
    assert body(await running)["completion"] == {"values": []}


async def test_a_call_that_is_cancelled_as_it_is_asked_ends_at_the_server():
    client = Stateless()
    call = client.call()
    running = client.world.start(call)
    await client.world.clock.advance(0)
    flight, answers = client.server.wire.waiting[-1], []
    flight.caller.park(QUESTION, Raw(b"{}"), answers.append)
    call.cancel("the client closed the stream")
    assert (await running).kind is OutcomeKind.CANCELLED
    assert client.server.wire.cancelled == [(flight, "the client closed the stream")]
    assert [answer.kind for answer in answers] == [OutcomeKind.ERROR], "nobody answers it any more"


async def test_a_call_is_not_held_up_beyond_its_end_by_a_server_that_is_told_a_level():
    client = Stateless()
    client.server.greeting = Greeting(LATEST_HANDSHAKE, {"logging": {}})
    call = client.call()
    call.log_level = 0
    running = client.world.start(call)
    await client.world.clock.advance(0)
    assert [flight.method for flight in client.server.wire.waiting] == ["logging/setLevel"]
    call.expire(1.0)
    await client.world.clock.advance(0)
    assert running.done()
    assert (await running).code == CALL_TIMEOUT


async def test_a_call_is_not_held_up_beyond_its_end_by_the_question_of_which_era_a_server_is():
    client = Stateless()
    client.server.refused_eras = set()
    call = client.call()
    running = client.world.start(call)
    await client.world.clock.advance(0)
    assert [flight.method for flight in client.server.wire.waiting] == ["server/discover"]
    call.expire(1.0)
    await client.world.clock.advance(0)
    assert running.done()
    assert (await running).code == CALL_TIMEOUT
    await client.server.extra_links.close(0.0)


@pytest.mark.parametrize("said", [[], None, 5, "q1"])
async def test_answers_that_are_no_object_are_the_clients_fault_and_cost_it_nothing(said):
    client = Stateless()
    asked = await client.asked()
    state = asked["requestState"]
    refused = await client.world.run(client.call(requestState=state, inputResponses=said))
    assert refused.code == INVALID_PARAMS
    again = body(await client.world.run(client.call(requestState=state, inputResponses={})))
    assert again["inputRequests"] == asked["inputRequests"]


async def test_a_client_that_left_before_its_ride_was_found_leaves_it_where_it_is():
    client = Stateless()
    asked = await client.asked()
    back = client.call(requestState=asked["requestState"], inputResponses={"q1": {}})
    back.route = client.route()
    back.cancel("the client closed the stream")
    outcome = await client.world.run(back)
    assert outcome.kind is OutcomeKind.CANCELLED
    assert client.answers == []
    again = body(await client.world.run(client.call(requestState=asked["requestState"])))
    assert again["resultType"] == "input_required"


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "held"])
async def test_a_call_that_waits_is_gone_on_with_though_its_server_takes_no_others(is_lost):
    """That the answer was not sent is not to be said of a call that may have run."""
    client = Stateless()
    asked = await client.asked()
    flight = client.server.wire.waiting[-1]
    client.server.go_down() if is_lost else client.server.hold()
    back = {"requestState": asked["requestState"], "inputResponses": {"q1": {}}}
    running = client.world.start(client.call(**back))
    await client.world.clock.advance(0)
    flight.end(outcomes.result(b'{"content":[]}'))
    outcome = await running
    assert outcome.delivery is (Delivery.UNKNOWN if is_lost else None)
    assert [body(answer) for answer in client.answers] == [{}]
    again = await client.world.run(client.call(**back))
    assert again.code == SERVER_UNAVAILABLE, "nothing waits for that any more"


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "replaced"])
async def test_a_call_that_waits_is_nothing_to_a_server_that_came_back_in_the_other_era(is_lost):
    """It ends as its own link does, or goes on there; what comes next is not asked."""
    client = Stateless()
    asked = await client.asked()
    flight = client.server.wire.waiting[-1]
    if is_lost:
        client.server.wire.lose()
    client.server.link = client.server._new_link(Era.STATELESS)
    back = {"requestState": asked["requestState"], "inputResponses": {"q1": {}}}
    running = client.world.start(client.call(**back))
    await client.world.clock.advance(0)
    flight.end(outcomes.result(b'{"content":[]}'))
    assert (await running).delivery is (Delivery.UNKNOWN if is_lost else None)
    assert (await client.world.run(client.call(**back))).code == INVALID_PARAMS
    assert client.server.wire.flights == []


async def test_a_call_waits_for_a_stateless_server_over_http_and_is_not_sent_to_a_session_of_it():
    up = FakeUpstream("one", connected=False, era=Era.STATELESS)
    up.definition = up.definition._replace(transport="http")
    client = Stateless(up)
    running = client.world.start(client.call())
    await client.world.clock.advance(0)
    life = client.world.tasks.spawn(up.run())
    assert body(await running)["name"] == "echo"
    assert [flight.method for flight in up.wire.flights] == ["server/discover", "tools/call"]
    assert len(up.links) == 1
    up.stop()
    await life


# -- a handshake client before a stateless server


@pytest.mark.parametrize("meta", [None, 5, [], "x"])
async def test_a_meta_that_is_no_object_is_replaced(meta):
    server = FakeUpstream("one", era=Era.STATELESS)
    server.refused_eras = {Era.HANDSHAKE}
    world = World(server)
    outcome = await world.run(world.call(_meta=meta))
    assert outcome.kind is OutcomeKind.RESULT
    (flight,) = server.wire.flights
    assert isinstance(json.loads(flight.params)["_meta"], dict)


@pytest.mark.parametrize("result", [b"null", b"5", b"[]"])
async def test_a_result_that_is_no_object_is_passed_on(result):
    server = FakeUpstream("one", script=lambda _: outcomes.result(result), era=Era.STATELESS)
    server.refused_eras = {Era.HANDSHAKE}
    world = World(server)
    outcome = await world.run(world.call())
    assert (outcome.kind, bytes(outcome.payload)) == (OutcomeKind.RESULT, result)


@pytest.mark.parametrize("era", [Era.STATELESS, Era.HANDSHAKE])
async def test_a_server_that_came_back_while_the_client_was_asked_is_called_where_it_is_now(era):
    """Its state is with us, and it needs no other; unless it is of the other era by now."""

    def asks(flight: Flight) -> Outcome:
        flight.link.closed.set_result(None)
        server.link = server.current = server._new_link(era)
        server.wire.script = echo
        return outcomes.result(b'{"resultType":"input_required","requestState":"s"}')

    server = FakeUpstream("one", script=asks, era=Era.STATELESS)
    server.refused_eras = {Era.HANDSHAKE}
    world = World(server)
    outcome = await world.run(world.call())
    if era is Era.STATELESS:
        assert body(outcome)["requestState"] == "s"
    else:
        assert (outcome.code, outcome.delivery) == (LINK_LOST, Delivery.UNKNOWN)
        assert server.wire.flights == []


async def test_a_call_whose_client_is_asked_goes_on_at_a_server_that_takes_no_others():
    def asks(flight: Flight) -> Outcome:
        server.hold()
        server.wire.script = echo
        return outcomes.result(b'{"resultType":"input_required","requestState":"s"}')

    server = FakeUpstream("one", script=asks, era=Era.STATELESS)
    server.refused_eras = {Era.HANDSHAKE}
    world = World(server)
    assert body(await world.run(world.call()))["requestState"] == "s"


ASKS = {
    "resultType": "input_required",
    "inputRequests": {"a": {"method": QUESTION, "params": {"message": "who?"}}},
}


async def test_a_call_that_is_cancelled_while_its_client_is_asked_ends_at_once():
    def asks(_: Flight) -> Outcome:
        return outcomes.result(json.dumps(ASKS).encode())

    server = FakeUpstream("one", script=asks, era=Era.STATELESS)
    server.refused_eras = {Era.HANDSHAKE}
    world = World(server)
    world.session.capabilities = {"elicitation": Raw(b"{}")}
    call = world.call()
    running = world.start(call)
    await world.clock.advance(0)
    (question,) = world.told()
    call.cancel("no longer wanted")
    assert (await running).kind is OutcomeKind.CANCELLED
    (taken_back,) = world.told()
    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"]["requestId"] == question["id"]


class Newer(Stateless):
    """A client before a server of its own era, which asks unless it is told or refuses."""

    def __init__(self) -> None:
        self.refuses = False
        self.state: object = "s"
        super().__init__(FakeUpstream("one", script=self.answer, era=Era.STATELESS))
        self.server.refused_eras = {Era.HANDSHAKE}

    def answer(self, flight: Flight) -> Outcome:
        if self.refuses:
            return outcomes.refused(b'{"code":-32602,"message":"that is no name"}')
        if "requestState" in json.loads(flight.params):
            return outcomes.result(b'{"resultType":"complete","content":[]}')
        return outcomes.result(json.dumps({**ASKS, "requestState": self.state}).encode())

    async def come_back(self, state: str, **members: Any) -> Outcome:
        back = self.call(requestState=state, inputResponses={"a": {}}, **members)
        return await self.world.run(back)


@pytest.mark.req("J-REQUEST-STATE")
async def test_the_state_of_a_stateless_server_is_good_once():
    client = Newer()
    state = body(await client.world.run(client.call()))["requestState"]
    assert body(await client.come_back(state))["resultType"] == "complete"
    assert (await client.come_back(state)).code == INVALID_PARAMS
    assert len(client.server.wire.flights) == 2


@pytest.mark.req("J-REQUEST-STATE")
async def test_the_state_of_a_stateless_server_is_good_for_the_same_call_only():
    client = Newer()
    arguments = {"a": 1, "b": "é"}
    state = body(await client.world.run(client.call(arguments=arguments)))["requestState"]
    assert (await client.come_back(state, arguments={"a": 2})).code == INVALID_PARAMS
    again = await client.come_back(state, arguments={"b": "\u00e9", "a": 1})
    assert body(again)["resultType"] == "complete"


@pytest.mark.req("J-REQUEST-STATE")
async def test_a_foreign_state_reaches_no_server_with_whatever_it_comes():
    client = Newer()
    said = {"ref": {"type": "ref/prompt", "name": "one:p"}, "requestState": "forged"}
    params = frames.members(json.dumps(said).encode())
    what = "completion/complete", address("completion/complete", params), params
    call = Call(client.caller, client.world.snapshot, *what, client.caller)
    call.route = client.route()
    outcome = await client.world.run(call)
    assert outcome.code == INVALID_PARAMS
    assert client.server.wire.flights == []


async def test_what_the_server_refused_may_be_tried_again_with_the_same_state():
    client = Newer()
    state = body(await client.world.run(client.call()))["requestState"]
    client.refuses = True
    assert (await client.come_back(state)).message == "that is no name"
    client.refuses = False
    assert body(await client.come_back(state))["resultType"] == "complete"


async def test_a_call_with_a_number_that_python_cannot_hold_comes_back_too():
    client = Newer()
    call = client.call()
    call.params["arguments"] = Raw(b'{"a":1e400}')
    state = body(await client.world.run(call))["requestState"]
    back = client.call(requestState=state)
    back.params["arguments"] = Raw(b'{"a":1e400}')
    assert body(await client.world.run(back))["resultType"] == "complete"


async def test_a_state_of_null_is_none():
    client = Newer()
    client.state = None
    asked = body(await client.world.run(client.call(requestState=None)))
    assert asked == ASKS
    older = Stateless(FakeUpstream("one", script=echo))
    assert seen(await older.world.run(older.call(requestState=None)))["resultType"] == "complete"


async def test_a_state_that_can_be_none_is_the_fault_of_its_server():
    client = Newer()
    client.state = 5
    failed = await client.world.run(client.call())
    assert (failed.code, failed.delivery) == (INTERNAL_ERROR, Delivery.EXECUTED)
    assert failed.message == "server 'one': requestState must be a string"


async def test_an_address_that_is_nobodys_has_the_code_of_its_era():
    client, world = Newer().caller, World(FakeUpstream("one"), FakeUpstream("two"))
    params = {"uri": Raw(b'"zzz://nope"')}
    what = "resources/read", address("resources/read", params), params
    assert (await world.run(Call(client, world.snapshot, *what, client))).code == INVALID_PARAMS
    asked = Call(world.session, world.snapshot, *what, world.session)
    assert (await world.run(asked)).code == RESOURCE_NOT_FOUND


@pytest.mark.parametrize("era", [Era.STATELESS, Era.HANDSHAKE])
@pytest.mark.parametrize("token", [None, {}, [], True])
async def test_what_is_no_progress_token_is_passed_on_and_not_used(era, token):
    server = FakeUpstream("one", era=era)
    server.refused_eras = {Era.HANDSHAKE, Era.STATELESS} - {era}
    world = World(server)
    call = world.call(_meta={"progressToken": token})
    await world.run(call)
    assert call.progress_token is None
    (flight,) = server.wire.flights
    assert json.loads(flight.params)["_meta"]["progressToken"] == token
