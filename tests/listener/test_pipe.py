"""A stateless client on a pipe: requests that follow each other at once, and senseless ones."""

import pytest
from tests.listener.backends import FakeBackend, StatelessClient

from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import INVALID_REQUEST, UNSUPPORTED_VERSION


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
