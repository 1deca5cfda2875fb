"""SIGTERM under load: not ready first, nothing lost, nothing left."""

import asyncio
import json
import signal
import time

import pytest
from tests.faults_http.wire import Client, until
from tests.journeys_eras.wire import Wire
from tests.plugin_faults import Figures
from tests.plugin_faults_http import HttpRig

from mcp_junction.service import DRAIN
from mcp_junction.testing import history

CALLS = 200
ENDS_WITHIN = 32.0


@pytest.mark.req("F-17", "R-DRAIN", "R-ANSWER", "R-ORPHANS")
@pytest.mark.parametrize(
    "seconds",
    [pytest.param(3.0, id="short"), pytest.param(25.0, id="long", marks=pytest.mark.soak)],
)
async def test_what_runs_when_the_service_is_told_to_end_is_finished_and_answered(
    http_rig: HttpRig, figures: Figures, seconds: float
) -> None:
    http_rig.add("one")
    http_rig.add_remote("two")
    gateway = http_rig.serve()
    client, prober, listener = (Client(gateway.port) for _ in range(3))
    await client.open()
    await client.tools()
    await listener.open()
    stream = await listener.send("GET")
    assert (await prober.request("GET", headers={":path": "/readyz"})).status == 200
    idle = [await client.connect() for _ in range(10)]

    def servers_ran() -> int:
        return sum(http_rig.ledger(key).runs().total() for key in ("one", "two"))

    calls = []
    for number in range(CALLS):
        what = {"delay_ms": round(seconds * 1000), "nonce": f"n{number}"}
        what |= {"fault": "progress", "amount": 2} if number % 4 == 0 else {}
        server = "one" if number % 2 else "two"
        call = client.call(f"{server}:record", meta={"progressToken": number}, **what)
        calls.append(asyncio.ensure_future(call))
    await until(lambda: servers_ran() == CALLS, "the calls to run")
    assert not any(call.done() for call in calls)
    began = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    status = 200
    while status == 200:
        status = (await prober.request("GET", headers={":path": "/readyz"})).status
    assert status == 503
    assert (await prober.request("GET", headers={":path": "/healthz"})).status == 200
    assert not any(call.done() for call in calls)
    late = await client.call("one:record", nonce="late")
    assert history.verdict(late) == "not_sent"
    answers = await asyncio.gather(*calls)
    answered = time.monotonic() - began
    for number, answer in enumerate(answers):
        assert answer["result"]["structuredContent"] == {"nonce": f"n{number}"}
    await asyncio.wait_for(stream.read(), 10)  # its end is told, not just cut off
    code = await asyncio.to_thread(gateway.process.wait, ENDS_WITHIN)
    took = time.monotonic() - began
    figures(answered=answered, took=took, after_the_last_answer=took - answered)
    assert code == 0
    assert took <= ENDS_WITHIN
    await until(lambda: not http_rig.processes(), "the servers to be gone", 5)
    assert servers_ran() == CALLS
    assert len(http_rig.ledger("two").entries("deleted")) == 1
    for pair in idle:
        assert await pair[0].read() == b""
    for one in (client, prober, listener):
        one.close()


@pytest.mark.soak
@pytest.mark.req("F-17", "R-ANSWER")
async def test_calls_that_do_not_end_in_time_are_answered_all_the_same(
    http_rig: HttpRig, figures: Figures
) -> None:
    http_rig.add("led")
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    await client.tools()  # the server is up: until then, half of these calls may wait
    calls = [
        asyncio.ensure_future(client.call("led:record", nonce=f"n{number}", fault="hang"))
        for number in range(CALLS)
    ]
    await until(lambda: http_rig.ledger().runs().total() == CALLS, "the calls to run")
    began = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    answers = await asyncio.gather(*calls)
    assert {history.verdict(answer) for answer in answers} == {"unknown"}
    assert await asyncio.to_thread(gateway.process.wait, ENDS_WITHIN) == 0
    took = time.monotonic() - began
    figures(took=took)
    assert took <= ENDS_WITHIN
    client.close()


@pytest.mark.req("R-ANSWER")
async def test_who_asks_again_is_not_kept_waiting_and_every_call_is_answered(
    http_rig: HttpRig,
) -> None:
    http_rig.add("led")
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    await client.tools()
    hanging = {"fault": "hang"}
    calls = [asyncio.ensure_future(client.call("led:record", nonce="old", **hanging))]
    wire = Wire(f"http://127.0.0.1:{gateway.port}/mcp")
    newer = wire.call, "led.record", {"nonce": "new", **hanging}
    calls.append(asyncio.ensure_future(asyncio.to_thread(*newer)))
    body = json.dumps({"name": "led.record", "arguments": {"nonce": "rest", **hanging}}).encode()
    key = (http_rig.folder / "data" / "admin.key").read_text().strip()
    headers = {":path": "/api/v1/tools/call", "authorization": f"Bearer {key}"}
    rest = client.request("POST", body, headers)
    calls.append(asyncio.ensure_future(rest))
    await until(lambda: http_rig.ledger().runs().total() == len(calls), "the calls to run")
    began = time.monotonic()
    answered = asyncio.gather(*calls)
    while not answered.done():
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.wait({answered}, timeout=0.3)
    old, new, done = await answered
    assert history.verdict(old) == "unknown"
    assert new.last["error"]["data"]["delivery"] == "unknown"
    assert done.status == 503
    assert await asyncio.to_thread(gateway.process.wait, ENDS_WITHIN) == 0
    assert time.monotonic() - began < DRAIN
    client.close()


@pytest.mark.req("F-17")
async def test_an_idle_service_ends_at_once(http_rig: HttpRig, figures: Figures) -> None:
    http_rig.add("led")
    gateway = http_rig.serve()
    clients = [Client(gateway.port) for _ in range(5)]
    for client in clients:
        await client.open()
        await client.send("GET")
    # It is not idle as long as it loads the routes of the REST API.
    docs = await Client(gateway.port).request("GET", headers={":path": "/api/v1/openapi.json"})
    assert docs.status == 200
    began = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.process.wait, ENDS_WITHIN) == 0
    figures(took=time.monotonic() - began)
    assert time.monotonic() - began < DRAIN
    for client in clients:
        client.close()
