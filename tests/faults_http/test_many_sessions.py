"""Sessions that come and go, and requests that are refused, by the thousand: nothing stays."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from tests.faults_http.served import served
from tests.faults_http.wire import Client, frame, until
from tests.keyring import Keys
from tests.plugin_faults import Figures
from tests.plugin_faults_http import HttpRig

from mcp_junction.policy.principal import LOCAL_OWNER, Role
from mcp_junction.testing import processes

MIB = 1024 * 1024
SHORT = pytest.param(2_000, 20, id="short")
LONG = pytest.param(50_000, 1_000, id="long", marks=pytest.mark.soak)

INITIALIZE = {"capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
PING = frame("ping", {}, 1)
BAD_OPENING = frame("initialize", INITIALIZE, 1)  # it names no protocol version
OPENING = frame("initialize", INITIALIZE | {"protocolVersion": "2025-11-25"}, 1)

Turn = Callable[[Client], Awaitable[None]]


async def come_and_go(client: Client) -> None:
    """A session that calls, perhaps with a stream, and goes."""
    response = await client.request("POST", OPENING)
    session = response.headers["mcp-session-id"]
    one = {"mcp-session-id": session}
    call = frame("tools/call", {"name": "led:echo", "arguments": {"nonce": "n"}}, 1)
    assert (await client.request("POST", call, one)).status == 200
    assert (await client.request("DELETE", b"", one)).status == 200


async def come_and_go_with_a_stream(client: Client) -> None:
    response = await client.request("POST", OPENING)
    session = response.headers["mcp-session-id"]
    stream = await client.send("GET", b"", {"mcp-session-id": session})
    assert stream.status == 200
    assert (await client.request("DELETE", b"", {"mcp-session-id": session})).status == 200
    await stream.read()
    client.done(stream)


def refused(status: int, method: str, body: bytes, **headers: str | None) -> Turn:
    """A request that is refused with this status."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}

    async def turn(client: Client) -> None:
        assert (await client.request(method, body, fields)).status == status

    return turn


REFUSALS = {
    "wrong key": refused(401, "POST", PING, authorization="Bearer jct_no_such"),
    "no key": refused(401, "POST", OPENING, authorization=None),
    "wrong host": refused(403, "POST", PING, host="evil.example"),
    "wrong origin": refused(403, "POST", PING, origin="https://evil.example"),
    "no JSON": refused(400, "POST", b"{", mcp_session_id="x"),
    "no frame": refused(400, "POST", b'{"a":1}' * 20, mcp_session_id="x"),
    "no session": refused(400, "POST", PING),
    "unknown session": refused(404, "POST", PING, mcp_session_id="abc.def"),
    "no version": refused(400, "POST", BAD_OPENING),
    "wrong type": refused(415, "POST", PING, content_type="text/plain"),
    "no stream": refused(406, "GET", b"", accept="text/html"),
    "unknown stream": refused(404, "GET", b"", mcp_session_id="abc.def"),
    "no such place": refused(404, "POST", PING, **{":path": "/no/such"}),
    "no such method": refused(405, "PATCH", PING),
}


async def again_and_again(turn: Turn, clients: list[Client], times: int) -> None:
    left = itertools.count()

    async def work(client: Client) -> None:
        while next(left) < times:
            await turn(client)

    await asyncio.gather(*map(work, clients))


async def measured(
    rig: HttpRig, figures: Figures, turns: dict[str, Turn], times: int, at_once: int
) -> None:
    """Each turn so often; memory and descriptors of the gateway before and after."""
    rig.add("led")
    _, secret = Keys(rig.folder / "data").create(Role.AGENT, "tester")
    gateway = rig.serve("--require-key")
    clients = [Client(gateway.port, key=secret) for _ in range(at_once)]
    for turn in turns.values():
        await again_and_again(turn, clients, max(200, at_once))  # until its memory is warm
    before = processes.memory(gateway.pid)
    fds = len(processes.descriptors(gateway.pid))
    grown = {}
    for name, turn in turns.items():
        start = processes.memory(gateway.pid)
        await again_and_again(turn, clients, times)
        grown[name.replace(" ", "_")] = (processes.memory(gateway.pid) - start) / MIB
    after = processes.memory(gateway.pid)
    fds_after = len(processes.descriptors(gateway.pid))
    figures(grown_mib=(after - before) / MIB, fds=fds_after - fds, each=str(grown))
    assert abs(fds_after - fds) <= 10
    assert after - before < 30 * MIB
    for client in clients:
        client.close()
    await until(
        lambda: len(processes.descriptors(gateway.pid)) <= fds - at_once + 10,
        "the connections to be closed",
    )


@pytest.mark.req("F-14")
@pytest.mark.parametrize(("times", "at_once"), [SHORT, LONG])
async def test_sessions_that_come_and_go_leave_nothing_behind(
    http_rig: HttpRig, figures: Figures, times: int, at_once: int
) -> None:
    turns: dict[str, Turn] = {"plain": come_and_go, "stream": come_and_go_with_a_stream}
    await measured(http_rig, figures, turns, times, at_once)


@pytest.mark.req("F-14")
@pytest.mark.parametrize(("times", "at_once"), [SHORT, LONG])
async def test_requests_that_are_refused_leave_nothing_behind(
    http_rig: HttpRig, figures: Figures, times: int, at_once: int
) -> None:
    each = max(times * 4 // len(REFUSALS), 200) if times < 10_000 else times
    await measured(http_rig, figures, REFUSALS, each, at_once)


@pytest.mark.req("F-14")
async def test_sessions_and_refusals_leave_no_task_and_no_session(http_rig: HttpRig) -> None:
    http_rig.add("led")
    _, secret = Keys(http_rig.folder / "data").create(Role.AGENT, "tester")
    async with served(http_rig) as within:
        clients = [Client(within.port, key=secret) for _ in range(10)]
        within.clients += clients
        await again_and_again(come_and_go, clients, 20)
        await within.quiet()
        tasks, sessions = len(asyncio.all_tasks()), len(within.junction.clients.sessions)
        for turn in [come_and_go, come_and_go_with_a_stream, *REFUSALS.values()]:
            await again_and_again(turn, clients, 50)
        await within.quiet()
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "the tasks to end")
        assert len(within.junction.clients.sessions) == sessions == 0
        assert len(within.service._registry) == 0


@pytest.mark.req("F-14")
@pytest.mark.req("R-QUOTA")
async def test_at_the_limit_of_sessions_each_opening_ends_an_older_one(http_rig: HttpRig) -> None:
    http_rig.add("led")
    http_rig.settings["max_sessions_per_principal"] = 5
    async with served(http_rig) as within:
        clients = [await within.client() for _ in range(5)]
        late = Client(within.port)
        within.clients.append(late)
        streams = [await client.send("GET") for client in clients]
        assert [stream.status for stream in streams] == [200] * 5
        for _ in range(50):
            assert (await late.request("POST", OPENING)).status == 200
            assert len(within.junction.clients.sessions) == len(within.service._registry) == 5
        usage = within.junction.quotas.of(LOCAL_OWNER)
        await until(lambda: len(usage.streams) == 4, "the stream of the oldest to end")
