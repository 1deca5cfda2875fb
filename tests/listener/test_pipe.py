"""A stateless client on a pipe: requests that follow each other at once, and senseless ones."""

import json

import pytest
from msgspec import Raw
from tests.listener.backends import FakeBackend, StatelessClient

from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Era,
)
from mcp_junction.testing.link import FakeUpstream, silence


async def test_a_listen_that_is_cancelled_in_the_same_breath_ends():
    client = StatelessClient(FakeBackend())
    client.listen(id="l")
    client.say({"method": "notifications/cancelled", "params": {"requestId": "l"}})
    await client.turns()
    assert not client.dispatcher.listens
    assert len(client.tasks) == 0


async def test_an_id_is_known_again_however_it_is_written():
    client = StatelessClient(FakeBackend())
    client.listen(id="l/1")
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l\\/1"}}'
    client.pipe.receive(frames.decode(cancel))
    await client.turns()
    assert not client.dispatcher.listens


async def test_an_id_that_is_used_again_in_the_same_breath_is_refused():
    client = StatelessClient(FakeBackend())
    client.listen(id="l")
    client.listen(id="l")
    await client.turns()
    assert len(client.dispatcher.listens) == 1
    assert [m["error"]["code"] for m in client.sent if "error" in m] == [INVALID_REQUEST]
    client.dispatcher.drain()
    await client.turns()
    assert not client.dispatcher.listens


@pytest.mark.parametrize("params", [[1], {}, {"protocolVersion": 5}])
async def test_a_handshake_is_refused_whatever_it_holds(params):
    client = StatelessClient(FakeBackend())
    client.say({"id": 7, "method": "initialize", "params": params})
    assert [(m["id"], m["error"]["code"]) for m in client.sent] == [(7, UNSUPPORTED_VERSION)]


@pytest.mark.req("J-REQUEST-STATE")
@pytest.mark.parametrize("request_id", [7, "a/b"])
async def test_a_call_that_waits_for_its_client_can_be_cancelled(request_id):
    server = FakeUpstream("one", script=silence)
    server.refused_eras = {Era.STATELESS}
    backend = FakeBackend(server)
    client = StatelessClient(backend)
    client.request("tools/call", {"name": "one:echo"}, id=request_id, can={"elicitation": {}})
    await client.turns()
    (flight,) = server.wire.flights
    answers = []
    flight.caller.park("elicitation/create", Raw(b"{}"), answers.append)
    await client.turns()
    (asked,) = client.sent
    assert asked["result"]["resultType"] == "input_required"
    assert len(backend.parked_calls) == 1
    client.say({"method": "notifications/cancelled", "params": {"requestId": "another"}})
    assert server.wire.cancelled == []
    for _ in range(2):
        client.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})
    assert server.wire.cancelled == [(flight, "cancelled by the client")]
    assert [answer.code for answer in answers] == [METHOD_NOT_FOUND]
    assert len(backend.parked_calls) == 0


async def test_only_so_many_calls_that_wait_are_remembered_by_their_ids():
    client = StatelessClient(FakeBackend())
    for number in range(1500):
        client.pipe._remember_question(b"%d" % number, b'"s"')
    assert len(client.pipe._asked) == 256
    client.pipe._remember_question(b"1500", b'"%b"' % (b"s" * 10_000))
    assert b"1500" not in client.pipe._asked, "a state as long as no ticket of ours"
    client.say({"method": "notifications/cancelled", "params": {"requestId": 1499}})
    assert client.sent == [], "nothing of ours"


@pytest.mark.parametrize("token", [{}, [], True])
async def test_what_is_no_progress_token_is_refused(token):
    client = StatelessClient(FakeBackend(FakeUpstream("one")))
    client.request("tools/call", {"name": "one:echo"}, progressToken=token)
    (refused,) = client.sent
    assert refused["error"]["code"] == INVALID_PARAMS
    assert "progressToken is a string or a number" in refused["error"]["message"]


async def test_a_progress_token_of_null_is_none():
    server = FakeUpstream("one", era=Era.STATELESS)
    client = StatelessClient(FakeBackend(server))
    client.request("tools/call", {"name": "one:echo"}, progressToken=None)
    await client.turns()
    assert "result" in client.sent[0]
    (flight,) = server.wire.flights
    assert json.loads(flight.params)["_meta"]["progressToken"] is None
