"""Answers over HTTP: JSON or a stream, and streams that go on after a connection was lost."""

import asyncio
import json

import pytest
from msgspec import Raw
from tests.http.fronts import EVERYTHING
from tests.http.peer_http import HttpPeer
from tests.http.wire import BOUND, Wire

from mcp_junction.config.settings import Quota
from mcp_junction.listener.http.sessions import HttpSession
from mcp_junction.listener.http.streams import KEPT_EVENTS, EventStream
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.tasks import TaskScope


@pytest.fixture
async def peer():
    async with HttpPeer() as peer:
        yield peer


@pytest.fixture
async def gateway(serving, peer):
    gateway = await serving({"p": {"url": peer.url}})
    await gateway.settled()
    return gateway


def call(tool: str, call_id: int = 1, token: str | None = "t", **arguments) -> bytes:
    params = {"name": f"p.{tool}", "arguments": arguments}
    if token:
        params["_meta"] = {"progressToken": token}
    message = {"jsonrpc": "2.0", "id": call_id, "method": "tools/call", "params": params}
    return json.dumps(message).encode()


async def begun(gateway, client, body: bytes, **headers) -> Wire:
    """Post a call on a bare connection."""
    wire = await gateway.wire()
    wire.request("POST", "/mcp", body, **client.headers, **headers)
    return wire


async def resumed(gateway, client, last_event_id: str) -> Wire:
    wire = await gateway.wire()
    wire.request(
        "GET", "/mcp", accept="text/event-stream", last_event_id=last_event_id, **client.headers
    )
    response = await wire.response()
    assert (response.status, response.is_stream) == (200, True)
    return wire


def kept_stream(gateway) -> tuple[HttpSession, EventStream]:
    """The one stream of the one session that keeps any."""
    ((found, stream),) = [
        (found, stream)
        for found in gateway.service._registry._sessions.values()
        for stream in (found.streams or {}).values()
    ]
    return found, stream


# -- which form an answer has


async def test_a_result_alone_is_json(gateway):
    client = await gateway.front(listens=False)
    response = await (await begun(gateway, client, call("echo"))).response()
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) == len(response.body)
    assert response.json["id"] == 1


async def test_a_call_that_speaks_before_it_ends_is_a_stream(gateway):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("steps", count=2))
    response = await wire.response()
    assert response.is_stream
    assert response.headers["cache-control"] == "no-cache, no-transform"
    *steps, answer = [event.message for event in await wire.rest() if event.data]
    assert [step["params"]["progress"] for step in steps] == [1, 2]
    assert answer["id"] == 1
    wire.request("POST", "/mcp", call("echo", 2), **client.headers)
    assert (await wire.response()).json["id"] == 2  # the connection is free for the next


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain"])
async def test_a_client_that_takes_no_streams_gets_the_result_alone(gateway, accept):
    client = await gateway.front(listens=False)
    response = await (
        await begun(gateway, client, call("steps", count=2), accept=accept)
    ).response()
    assert response.headers["content-type"] == "application/json"
    assert response.json["result"]["content"][0]["text"] == "done"


async def test_what_has_no_answer_is_accepted(gateway):
    client = await gateway.front(listens=False)
    for body in (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}',
        b'{"jsonrpc":"2.0","method":"notifications/whatever"}',
        b'{"jsonrpc":"2.0","id":"nobody asked","result":{}}',
    ):
        response = await (await begun(gateway, client, body)).response()
        assert (response.status, response.body) == (202, b"")


async def test_a_cancelled_call_ends_its_response_without_an_answer(gateway, peer):
    client = await gateway.front(listens=False)
    plain = await begun(gateway, client, call("hold", 7, token=None))
    streaming = await begun(gateway, client, call("hold", 8))
    await peer.visited("tools/call", 2)
    assert (await streaming.response()).is_stream
    for call_id in (7, 8):
        client.notify("notifications/cancelled", {"requestId": call_id})
    response = await plain.response()
    assert (response.status, response.body) == (202, b"")
    assert all(e.data == "" or "method" in e.message for e in await streaming.rest())


async def test_an_id_that_is_still_in_use_is_refused(gateway, peer):
    client = await gateway.front(listens=False)
    await begun(gateway, client, call("hold", 5))
    await peer.visited("tools/call")
    second = await (await begun(gateway, client, call("echo", 5))).response()
    assert "still running" in second.words


# -- priming and ids


async def test_a_stream_begins_with_an_id_only_for_clients_that_expect_it(gateway):
    for version, primed in (("2025-11-25", True), ("2025-06-18", False), ("2025-03-26", False)):
        client = await gateway.front(listens=False, version=version)
        wire = await begun(gateway, client, call("steps", count=1))
        assert (await wire.response()).is_stream
        events = await wire.rest()
        assert (events[0].data == "") is primed
        if primed:
            assert (events[0].id, events[0].retry) == ("1_0", "1000")
        assert [event.id for event in events if event.data] == ["1_1", "1_2"]


async def test_the_ids_of_two_streams_of_a_session_differ(gateway):
    client = await gateway.front(listens=False)
    ids = []
    for call_id in (1, 2):
        wire = await begun(gateway, client, call("steps", call_id, count=1))
        await wire.response()
        ids += [event.id for event in await wire.rest()]
    assert len(ids) == len(set(ids)) == 6


# -- resuming


async def test_a_call_whose_connection_was_lost_is_answered_on_the_resumed_stream(gateway, peer):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("hold", 4))
    await wire.response()
    await wire.event()  # it is primed
    seen = await wire.event()
    assert seen.message["method"] == "notifications/progress"
    wire.reset()
    again = await resumed(gateway, client, seen.id)
    assert (await again.event()).id == seen.id
    await client.told("p.release")
    (answer,) = await again.rest()
    assert answer.message["result"]["content"][0]["text"] == "released"
    assert len([v for v in peer.told("tools/call") if b"hold" in v.body]) == 1


async def test_an_answer_that_came_while_the_client_was_away_waits_for_it(gateway):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("hold", 4))
    await wire.response()
    primer = await wire.event()
    wire.reset()
    await client.told("p.release")
    again = await resumed(gateway, client, primer.id)
    _, progress, answer = await again.rest()
    assert progress.message["method"] == "notifications/progress"
    assert answer.message["id"] == 4
    later = await resumed(gateway, client, progress.id)
    assert [event.message["id"] for event in await later.rest() if event.data] == [4]
    done = await resumed(gateway, client, answer.id)
    assert [event for event in await done.rest() if event.data] == []


async def test_a_resumed_stream_is_dropped_a_while_after_it_has_delivered_its_end(gateway):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("hold", 4))
    await wire.response()
    primer = await wire.event()
    wire.reset()
    await client.told("p.release")
    again = await resumed(gateway, client, primer.id)
    *_, answer = await again.rest()
    assert answer.message["id"] == 4
    found, stream = kept_stream(gateway)
    gateway.service._registry.sweep()
    assert kept_stream(gateway) == (found, stream), "it may have lost the end on its way"
    gateway.service._registry.sweep()
    assert not found.streams
    del stream
    assert found.session.usage.bytes == 0


async def test_a_resumed_stream_that_is_lost_again_waits_for_its_client(gateway):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("hold", 4))
    await wire.response()
    primer = await wire.event()
    wire.reset()
    again = await resumed(gateway, client, primer.id)
    progress = await again.event()
    again.reset()
    _, stream = kept_stream(gateway)
    async with asyncio.timeout(BOUND):
        while stream.is_attached:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
    await client.told("p.release")
    for _ in range(3):
        gateway.service._registry.sweep()
    last = await resumed(gateway, client, progress.id)
    *_, answer = await last.rest()
    assert answer.message["id"] == 4


async def test_an_answer_that_a_lost_client_has_not_taken_waits_for_it(gateway):
    """It does not read, so that the answer is not written yet when its connection is lost."""
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("hold", 4))
    await wire.response()
    await wire.event()
    progress = await wire.event()
    _, stream = kept_stream(gateway)
    stream._send.__self__._connection.pause_writing()
    await client.told("p.release")
    async with asyncio.timeout(BOUND):
        while not stream.ended:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        wire.reset()
        while stream.is_attached:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    for _ in range(3):
        gateway.service._registry.sweep()
    again = await resumed(gateway, client, progress.id)
    *_, answer = await again.rest()
    assert answer.message["id"] == 4


async def test_a_question_asked_while_the_client_was_away_waits_for_it(gateway):
    client = await gateway.front(listens=False, capabilities=EVERYTHING)
    wire = await begun(gateway, client, call("ask", 4, method="roots/list"))
    await wire.response()
    primer = await wire.event()
    wire.reset()
    again = await resumed(gateway, client, primer.id)
    await again.event()
    question = (await again.event()).message
    assert question["method"] == "roots/list"
    client.respond(question, {"roots": []})
    (answer,) = await again.rest()
    assert json.loads(answer.message["result"]["content"][0]["text"]) == {"result": {"roots": []}}


async def test_another_session_cannot_resume_a_stream(gateway):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("steps", count=2))
    await wire.response()
    await wire.rest()
    stranger = await gateway.front(listens=False)
    again = await resumed(gateway, stranger, "1_0")
    assert (await again.event()).id == "0_0"  # it is its own standing stream
    await stranger.told("p.grow", kind="tools", name="new")


@pytest.mark.parametrize("event_id", ["99_1", "x", "1", "_", "-1_0", "1_" + "9" * 30])
async def test_an_event_nobody_knows_resumes_nothing(gateway, event_id):
    client = await gateway.front(listens=False)
    wire = await resumed(gateway, client, event_id)
    assert (await wire.event()).id == "0_0"


async def test_only_so_many_events_are_kept(gateway):
    client = await gateway.front(listens=False)
    count = KEPT_EVENTS + 50
    wire = await begun(gateway, client, call("steps", count=count))
    await wire.response()
    primer = await wire.event()
    await wire.rest()
    events = await (await resumed(gateway, client, primer.id)).rest()
    kept = [event for event in events if event.data]
    assert len(kept) == KEPT_EVENTS
    assert kept[-1].message["id"] == 1


# -- the standing stream


async def test_changes_are_announced_on_the_standing_stream(gateway):
    client = await gateway.front(listens=False)
    await client.names()
    wire = await gateway.wire()
    wire.request("GET", "/mcp", accept="text/event-stream", **client.headers)
    assert (await wire.response()).is_stream
    assert (await wire.event()).id == "0_0"
    await client.told("p.grow", kind="tools", name="new")
    event = await wire.event()
    assert event.message == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    wire.reset()
    await client.told("p.grow", kind="tools", name="newer")
    again = await resumed(gateway, client, event.id)
    await again.event()
    assert (await again.event()).message["method"] == "notifications/tools/list_changed"


async def test_a_question_for_no_call_waits_until_somebody_listens(gateway, peer):
    client = await gateway.front(listens=False, capabilities=EVERYTHING)
    await client.told("p.ask_alone", method="roots/list")
    await gateway_asked(gateway)
    await client.listen()
    client.respond(await client.heard("roots/list"), {"roots": []})
    await peer.until(lambda: [v for v in peer.visits if v.message.get("result") == {"roots": []}])


async def gateway_asked(gateway) -> None:
    (session,) = gateway.junction.clients.sessions
    async with asyncio.timeout(BOUND):
        while not session._questions:  # noqa: ASYNC110 - nothing tells when it was asked
            await asyncio.sleep(0)


async def test_a_second_standing_stream_takes_the_place_of_the_first(gateway):
    client = await gateway.front(listens=False)
    await client.names()
    wires = []
    for _ in range(2):
        wire = await gateway.wire()
        wire.request("GET", "/mcp", accept="text/event-stream", **client.headers)
        await wire.response()
        await wire.event()
        wires.append(wire)
    assert await wires[0].rest() == []
    await client.told("p.grow", kind="tools", name="new")
    assert (await wires[1].event()).message["method"] == "notifications/tools/list_changed"


async def test_a_client_that_does_not_read_loses_what_may_be_lost_and_nothing_else(gateway, peer):
    client = await gateway.front(listens=False)
    wire = await begun(gateway, client, call("hold", 4))
    await wire.response()
    await wire.event()
    await wire.event()
    wire.writer.transport.pause_reading()
    session = peer.session
    held = next(v for v in peer.told("tools/call") if b"hold" in v.body).message
    step = {"progressToken": held["params"]["_meta"]["progressToken"], "progress": 1}
    step["message"] = "x" * 100_000
    for _ in range(300):
        session.conversation.notify("notifications/progress", step, held["id"])
        await asyncio.sleep(0)
    await client.told("p.release")
    wire.writer.transport.resume_reading()
    events = [event.message for event in await wire.rest()]
    assert events[-1]["id"] == 4
    assert 0 < len(events) < 300


async def test_a_stream_is_resumed_though_its_former_reader_is_stuck(gateway, peer):
    client = await gateway.front(listens=False)
    stuck = await begun(gateway, client, call("hold", 4))
    await stuck.response()
    primer = await stuck.event()
    await stuck.event()
    stuck.writer.transport.pause_reading()
    held = next(v for v in peer.told("tools/call") if b"hold" in v.body).message
    step = {"progressToken": held["params"]["_meta"]["progressToken"], "progress": 1}
    step["message"] = "x" * 100_000
    for _ in range(300):  # more than all buffers on the way hold
        peer.session.conversation.notify("notifications/progress", step, held["id"])
        await asyncio.sleep(0)
    again = await resumed(gateway, client, primer.id)
    await client.told("p.release")
    assert (await again.rest())[-1].message["id"] == 4


async def test_a_reader_that_takes_nothing_is_hung_up_on(gateway, monkeypatch):
    monkeypatch.setattr("mcp_junction.listener.http.streams.BREAK_ABOVE", 200_000)
    client = await gateway.front(listens=False, capabilities=EVERYTHING)
    wire = await gateway.wire()
    wire.request("GET", "/mcp", accept="text/event-stream", **client.headers)
    await wire.response()
    wire.writer.transport.pause_reading()
    (session,) = gateway.junction.clients.sessions
    questions = [
        asyncio.create_task(session.ask("sampling/createMessage", Raw(b'"%b"' % (b"x" * 500_000))))
        for _ in range(60)
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    wire.writer.transport.resume_reading()
    with pytest.raises(asyncio.IncompleteReadError):
        await wire.rest()
    again = await resumed(gateway, client, "0_58")
    events = [event for event in [await again.event() for _ in range(3)] if event.data]
    assert [event.message["method"] for event in events] == ["sampling/createMessage"] * 2
    for question in questions:
        question.cancel()
    await asyncio.wait(questions)


# -- the end of a session


async def test_a_deleted_session_ends_with_its_calls_and_streams(gateway, peer):
    client = await gateway.front()
    running = await client.under_way("p.hold")
    assert (await client.delete()).status == 200
    error = (await client.answer(running))["error"]
    assert error["message"] == "the client ended the session"
    assert error["data"]["delivery"] == "unknown"
    await peer.visited("notifications/cancelled")
    assert (await client.delete()).status == 404
    assert not gateway.junction.clients.sessions


# -- what a principal may have waiting


async def limited_stream(
    quota: int, **how
) -> tuple[QuotaUsage, EventStream, list[bytes], TaskScope]:
    """A stream of a principal that may have so many bytes waiting; what its reader was sent."""
    tasks, sent = TaskScope("streams"), []

    async def send(message) -> None:
        sent.append(message.get("body", b""))

    usage = QuotaUsage(Quota(bytes=quota))
    stream = EventStream(1, tasks, usage, **how)
    await stream.attach(send, after=0, prime=False)
    return usage, stream, sent, tasks


@pytest.mark.req("R-QUOTA")
async def test_bytes_are_counted_while_they_wait_and_no_longer():
    usage, stream, sent, tasks = await limited_stream(10_000)
    stream.send(b'"%b"\n' % (b"x" * 1000))
    assert usage.bytes > 2000, "it is kept, and on its way"
    await tasks.settle(5)
    assert 1000 < usage.bytes < 2000, "it is kept"
    assert b"x" * 1000 in sent[-1]
    stream.detach()
    del stream
    assert usage.bytes == 0


@pytest.mark.req("R-QUOTA")
async def test_a_principal_over_its_bytes_loses_what_is_kept_then_its_reader():
    usage, stream, sent, tasks = await limited_stream(5_000)
    for _ in range(10):
        stream.send(b'"%b"\n' % (b"x" * 1000))
        await tasks.settle(5)
    assert len(sent) == 12, "a reader that reads misses nothing"
    assert usage.bytes <= 5_000
    usage.bytes += 5_000  # another stream of the same principal holds all it may
    detached = stream.detached
    stream.offer(b'"can be done without"\n')
    assert stream.is_attached
    stream.send(b'"cannot"\n')
    assert detached.done()
    assert not stream.is_attached
    usage.bytes -= 5_000
    assert usage.bytes == 0


@pytest.mark.req("R-QUOTA")
async def test_what_nobody_can_come_back_for_is_not_counted_once_it_is_sent():
    usage, stream, _, tasks = await limited_stream(5_000, resumable=False)
    for _ in range(20):
        stream.send(b'"%b"\n' % (b"x" * 1000))
        await tasks.settle(5)
    assert usage.bytes == 0
