"""ServerSet: every change of a server is one event, told to every sink in the same step."""

import asyncio
import logging

import pytest

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.protocol.frames import Frame
from mcp_junction.testing.fakes import MemorySink
from mcp_junction.testing.link import DeafInbox, FakeUpstream
from mcp_junction.upstream.events import ServerChange, ServerChanged, log_change
from mcp_junction.upstream.servers import ServerSet
from mcp_junction.upstream.state import ServerState

BOUND = 30.0
DEFINITION = ServerDefinition("s", "stdio", command="fake")


class Inbox(DeafInbox):
    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def receive(self, upstream, frame) -> None:
        self.frames.append(frame)


def server_set(*sinks) -> tuple[ServerSet, Inbox]:
    inbox = Inbox()

    def make(definition, listeners):
        made = FakeUpstream(definition.key, connected=False, listeners=listeners)
        made.definition = definition
        return made

    return ServerSet(make, sinks, (), inbox), inbox


def changes(sink: MemorySink) -> list[str]:
    return [event.change.value for event in sink.changes]


async def test_every_step_of_a_server_is_told_to_every_sink_in_the_same_step():
    one, two = MemorySink(), MemorySink()
    servers, _ = server_set(one, two)
    server = servers.add(DEFINITION, start=False)
    servers.start("s")
    async with asyncio.timeout(BOUND):
        await server.settled.wait()
    servers.redefine("s", DEFINITION._replace(timeout_ms=5))
    servers.redefine("s", DEFINITION._replace(key="t"))
    assert one.changes[-1].previous == "s"
    assert list(servers) == ["t"]
    servers.replace(DEFINITION._replace(key="t"), 0.0)
    assert one.changes[-1].server is servers["t"] is not server
    assert await servers.stop("t") == 0
    servers.remove("t")
    await servers.close(1.0)
    assert one.events == two.events
    told = changes(one)
    assert told[:4] == ["added", "starting", "state", "state"]
    assert [event.state for event in one.changes[2:4]] == [
        ServerState.CONNECTING,
        ServerState.CONNECTED,
    ]
    assert [change for change in told[4:] if change != "state"] == [
        "redefined",
        "renamed",
        "replaced",
        "stopping",
        "stopped",
        "removed",
    ]


async def test_what_a_server_announces_is_an_event_until_it_is_removed():
    sink = MemorySink()
    servers, inbox = server_set(sink)
    server = servers.add(DEFINITION, start=False)
    message = Frame("2.0", method="notifications/message")
    lists = Frame("2.0", method="notifications/tools/list_changed")
    server.on_notification(lists)
    server.on_notification(message)
    server.on_renewed()
    assert changes(sink) == ["added", "lists", "renewed"]
    assert sink.changes[1].method == lists.method
    assert inbox.frames == [message]
    servers.remove("s")
    server.on_notification(lists)
    server.on_notification(message)
    server.on_renewed()
    assert changes(sink)[3:] == ["removed"]
    assert inbox.frames == [message]
    await servers.close(1.0)


async def test_the_end_of_a_server_that_was_replaced_is_no_news():
    sink = MemorySink()
    servers, _ = server_set(sink)
    old = servers.add(DEFINITION)
    async with asyncio.timeout(BOUND):
        await old.settled.wait()
        servers.replace(DEFINITION, 0.0)
        await servers["s"].settled.wait()
        while old.state is not ServerState.DISCONNECTED:  # noqa: ASYNC110 - it is no news
            await asyncio.sleep(0)
    assert ServerState.DISCONNECTED not in [
        event.state for event in sink.changes if event.change is ServerChange.STATE
    ]
    await servers.close(1.0)


async def test_a_sink_that_fails_harms_neither_the_others_nor_the_step(caplog):
    def broken(event):
        raise OSError("disk full")

    before, after = MemorySink(), MemorySink()
    servers, _ = server_set(before, broken, after)
    servers.add(DEFINITION, start=False)
    assert changes(before) == changes(after) == ["added"]
    assert "a sink of server changes failed" in caplog.text


async def test_changes_of_state_can_be_read_in_the_log(caplog):
    server = FakeUpstream("s")
    state = ServerChange.STATE
    with caplog.at_level(logging.DEBUG, "mcp_junction.telemetry"):
        log_change(ServerChanged(server, ServerChange.ADDED, ServerState.DISCONNECTED))
        log_change(ServerChanged(server, state, ServerState.CONNECTED))
        log_change(ServerChanged(server, state, ServerState.ERROR, "it left"))
    assert caplog.messages == ["server 's' is CONNECTED", "server 's' is ERROR: it left"]


async def test_events_cannot_be_changed():
    event = ServerChanged(FakeUpstream("s"), ServerChange.STATE, ServerState.ERROR)
    with pytest.raises(AttributeError, match="immutable"):
        event.state = ServerState.CONNECTED
