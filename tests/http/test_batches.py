"""Batches: of the two oldest versions they are answered, of later ones refused."""

import json
from typing import Any

import pytest
from tests.http.fronts import PipeFront
from tests.http.peer_http import HttpPeer
from tests.http.test_doors import post

OLD = ["2024-11-05", "2025-03-26"]
NEW = ["2025-06-18", "2025-11-25"]
NOTE = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def ping(frame_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": frame_id, "method": "ping"}


def call(frame_id: Any, tool: str, token: Any = None, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return {"jsonrpc": "2.0", "id": frame_id, "method": "tools/call", "params": params}


@pytest.fixture
async def peer():
    async with HttpPeer() as found:
        yield found


@pytest.fixture
async def gateway(serving, peer):
    return await serving({"p": {"url": peer.url}}, max_body_bytes=100_000)


async def posted(gateway, client, batch: Any, **headers: str):
    body = batch if isinstance(batch, bytes) else json.dumps(batch).encode()
    return await post(gateway, body, **(client.headers | headers))


async def batched(front: PipeFront, batch: Any) -> Any:
    """What a batch on the pipe is answered."""
    before = len(front.messages)
    front.send(batch)
    return (await front.until(lambda: front.messages[before:]))[0]


# -- over HTTP


@pytest.mark.parametrize("version", OLD)
async def test_a_batch_is_answered_by_an_array(gateway, client_of, version):
    client = await client_of(version)
    batch = [ping(1), NOTE, call("b", "p.echo", word="x"), {"id": 7}, call(4, "p.nosuch"), 5]
    response = await posted(gateway, client, batch)
    assert response.status == 200
    first, second, third, fourth, fifth = response.json
    assert first == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert second["id"] == "b"
    said = json.loads(second["result"]["content"][0]["text"])
    assert said["arguments"] == {"word": "x"}
    assert (third["id"], third["error"]["code"]) == (7, -32600)
    assert (fourth["id"], "error" in fourth) == (4, True)
    assert (fifth["id"], fifth["error"]["code"]) == (None, -32600)


@pytest.fixture
def client_of(gateway):
    async def opened(version: str, **how: Any):
        return await gateway.front(version=version, **how)

    return opened


async def test_a_batch_without_a_request_is_accepted(gateway, client_of):
    client = await client_of("2025-03-26")
    answer = {"jsonrpc": "2.0", "id": "nobody-asked", "result": {}}
    response = await posted(gateway, client, [NOTE, answer, NOTE])
    assert (response.status, response.body) == (202, b"")


@pytest.mark.parametrize("version", NEW)
async def test_a_later_version_has_no_batches(gateway, client_of, version):
    client = await client_of(version)
    response = await posted(gateway, client, [ping(1)])
    assert response.status == 400
    assert response.json["error"]["code"] == -32600
    assert "batches are not part of MCP since 2025-06-18" in response.words


@pytest.mark.parametrize(
    ("batch", "code"),
    [([], -32600), ([ping(1)] * 101, -32600), (b"[", -32700), (b'[{"id":1]', -32700)],
)
async def test_what_is_no_batch_has_one_error(gateway, client_of, batch, code):
    client = await client_of("2025-03-26")
    response = await posted(gateway, client, batch)
    assert response.status == 400
    assert (response.json["id"], response.json["error"]["code"]) == (None, code)


async def test_the_limit_of_the_body_holds_for_a_batch(gateway, client_of):
    client = await client_of("2025-03-26")
    assert (await posted(gateway, client, [ping("x" * 900)] * 99)).status == 200
    assert (await posted(gateway, client, [ping("x" * 1020)] * 99)).status == 413


async def test_a_batch_needs_a_session_and_opens_none(gateway, client_of):
    client = await client_of("2025-03-26")
    hello = json.loads(client.hello)
    (refused,) = (await posted(gateway, client, [hello])).json
    assert refused["id"] == 0
    assert "initialize must not be part of a batch" in refused["error"]["message"]
    body = json.dumps([hello]).encode()
    assert (await post(gateway, body)).status == 400
    assert (await post(gateway, body, mcp_session_id="no-such")).status == 404


async def test_calls_of_a_batch_run_side_by_side_and_may_speak_first(gateway, client_of, peer):
    client = await client_of("2025-03-26")
    wire = await gateway.wire()
    batch = [call(1, "p.hold", "one"), call(2, "p.steps", "two", count=2), ping(3)]
    wire.request("POST", "/mcp", json.dumps(batch).encode(), **client.headers)
    assert (await wire.response()).is_stream
    seen = [(await wire.event()).message for _ in range(3)]
    assert {message["params"]["progressToken"] for message in seen} == {"one", "two"}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert (await posted(gateway, client, [cancel])).status == 202
    answers = [event.message for event in await wire.rest() if event.data]
    answers = [message for message in answers if "id" in message]
    assert [message["id"] for message in answers] == [2, 3]


async def test_an_id_that_stands_twice_in_a_batch_is_one_call(gateway, client_of):
    client = await client_of("2025-03-26")
    batch = [call(1, "p.echo"), call(1, "p.echo")]
    answers = (await posted(gateway, client, batch)).json
    assert ["result" in answer for answer in answers] == [True, False]
    assert "still running" in answers[1]["error"]["message"]


# -- on stdio


@pytest.mark.parametrize("version", OLD)
async def test_a_batch_on_stdio_is_answered_in_one_line(piped, peer, version):
    front = await piped({"p": {"url": peer.url}}, version=version)
    first, second, third = await batched(front, [call(1, "p:echo"), NOTE, ping(2), {"id": 3}])
    assert [first["id"], second["id"], third["id"]] == [1, 2, 3]
    assert "result" in first
    assert third["error"]["code"] == -32600
    front.send([NOTE])  # not answered at all
    assert (await batched(front, []))["error"]["message"] == "the batch is empty"


@pytest.mark.parametrize("version", NEW)
async def test_a_later_version_has_no_batches_on_stdio_either(piped, version):
    front = await piped({}, version=version)
    refused = await batched(front, [ping(1)])
    assert refused["id"] is None
    assert "batches are not part of MCP since 2025-06-18" in refused["error"]["message"]


async def test_a_request_of_a_batch_on_stdio_can_be_cancelled(piped, peer):
    front = await piped({"p": {"url": peer.url}}, version="2025-03-26")
    front.send([call(1, "p:hold", "one"), ping(2)])
    await front.heard("notifications/progress")
    front.notify("notifications/cancelled", {"requestId": 1})
    assert await front.until(lambda: [m for m in front.messages if isinstance(m, list)]) == [
        [{"jsonrpc": "2.0", "id": 2, "result": {}}]
    ]
