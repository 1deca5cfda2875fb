"""Faults with retry, circuits, fallbacks and idempotency keys on: nothing runs twice."""

import asyncio
import random
import signal
from collections import Counter
from typing import Any

import pytest
from tests.faults.governed import Caller, governed, share_ledger
from tests.faults.inside import until
from tests.plugin_faults import Figures, Rig
from tests.plugin_faults_http import HttpRig

from mcp_junction.policy.tool_settings import FallbackTarget, ToolSetting
from mcp_junction.tasks import TaskScope
from mcp_junction.testing import history
from mcp_junction.testing.faults import FaultProxy
from mcp_junction.testing.history import Seen

SETTINGS = {
    "retry_base_ms": 20,
    "retry_max_delay_ms": 500,
    "circuit_cooldown": 1,
    "circuit_failure_threshold": 5,
}
TO_SPARE = ToolSetting("id-led", "record", fallbacks=(FallbackTarget("id-spare", "record"),))
READS = ToolSetting("id-led", "echo", idempotent=True)
SHORT = pytest.param(300, id="short")
LONG = pytest.param(10_000, id="long", marks=pytest.mark.soak)


async def kill_again_and_again(rig: Rig, key: str, kills: list[int]) -> None:
    """Kill the processes of a server, with -9, twice a second.

    The pauses differ: of two equal ones the cooldown of a circuit, a second, is the sum, and each
    call that tests the server after a cooldown would meet the next kill.
    """
    chance = random.Random(2)
    while True:
        await asyncio.sleep(chance.uniform(0.25, 0.75))  # the pace of the faults
        for pid in rig.processes(key):
            rig.kill(pid, signal.SIGKILL)
            kills.append(pid)


@pytest.mark.req("F-01", "R-RETRY", "R-FALLBACK", "R-BREAKER")
@pytest.mark.parametrize("calls", [SHORT, LONG])
async def test_nothing_runs_twice_while_a_server_is_killed_again_and_again(
    rig: Rig, figures: Figures, calls: int
) -> None:
    rig.settings |= SETTINGS
    rig.add("led", timeout=1_000)
    share_ledger(rig, "spare", "led", timeout=1_000)
    chance, kills = random.Random(1), list[int]()
    faults = TaskScope("faults")
    async with governed(rig, TO_SPARE, READS) as within:
        caller = Caller(within)
        faults.spawn(kill_again_and_again(rig, "led", kills))

        async def call(number: int) -> tuple[str, dict[str, Any]]:
            tool = "led:echo" if number % 3 == 0 else "led:record"
            fault = {"fault": "hang"} if chance.random() < 0.05 and tool != "led:echo" else {}
            nonce = f"n{number}"
            delay = chance.randrange(30)
            return tool, await caller.call(tool, nonce=nonce, delay_ms=delay, **fault)

        made: list[asyncio.Future[Any]] = []
        for number in range(calls):
            made.append(asyncio.ensure_future(call(number)))
            await asyncio.sleep(1 / 150)  # the pace of the load
        answers = await asyncio.gather(*made)
        await faults.close()
    seen = [
        Seen(f"n{number}", [answer])
        for number, (tool, answer) in enumerate(answers)
        if tool == "led:record"
    ]
    ends = history.tally(seen)
    read = Counter(history.verdict(answer) for tool, answer in answers if tool == "led:echo")
    figures(kills=len(kills), read=dict(read), **ends)
    assert history.check(seen, rig.ledger()) == []
    assert len(kills) >= 2
    assert ends["result"] > len(seen) // 2, "what was not sent ran at the other server"
    assert read["result"] > 20 * read["unknown"], "what only reads is tried again"


@pytest.mark.req("F-02", "R-RETRY", "R-FALLBACK")
@pytest.mark.parametrize(
    "crashes", [pytest.param(8, id="short"), pytest.param(1_000, id="long", marks=pytest.mark.soak)]
)
async def test_a_crash_after_the_execution_is_unknown_and_not_made_up_for_by_another(
    rig: Rig, crashes: int
) -> None:
    rig.settings |= SETTINGS | {"circuit_failure_threshold": 10_000}
    rig.add("led")
    share_ledger(rig, "spare", "led")
    async with governed(rig, TO_SPARE) as within:
        caller, seen = Caller(within), []
        for number in range(crashes):
            nonce = f"n{number}"
            answer = await caller.call(
                "led:record", nonce=nonce, fault="after_execute_before_answer"
            )
            seen.append(Seen(nonce, [answer]))
        (escalation,) = await within.governance.escalations.read(_open())
    assert history.check(seen, rig.ledger()) == []
    assert history.tally(seen) == {"unknown": crashes}
    assert rig.ledger().runs().total() == crashes
    assert (escalation.count, escalation.failure) == (crashes, "link")


def _open() -> Any:
    from mcp_junction.store.resilience import EscalationQuery

    return EscalationQuery(is_open=True)


@pytest.mark.req("F-13", "R-IDEMPOTENCY", "REQ-MCP-CALL-003")
@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize(
    "rounds", [pytest.param(2, id="short"), pytest.param(100, id="long", marks=pytest.mark.soak)]
)
async def test_fifty_calls_with_one_key_run_once_and_are_answered_alike(
    http_rig: HttpRig, store_url: str, kind: str, rounds: int
) -> None:
    http_rig.settings |= SETTINGS
    http_rig.add_any(kind)
    async with governed(http_rig, store_url=store_url) as within:
        callers = [Caller(within) for _ in range(5)]
        for number in range(rounds):
            key, nonce = f"key-{number}", f"n{number}"
            made = [
                callers[n % 5].call("led:record", key, nonce=nonce, delay_ms=20) for n in range(50)
            ]
            answers = await asyncio.gather(*made)
            results = [answer["result"] for answer in answers]
            assert results == [results[0]] * 50
            other = await callers[0].call("led:record", key, nonce="another")
            assert other["error"]["code"] == -32009
            assert other["error"]["data"]["delivery"] == "not_sent"
    assert http_rig.ledger().runs() == {f"n{number}": 1 for number in range(rounds)}


@pytest.mark.req("R-IDEMPOTENCY", "REQ-MCP-CALL-003")
async def test_a_key_survives_a_restart_and_what_crashed_is_unknown(
    rig: Rig, store_url: str
) -> None:
    rig.settings |= SETTINGS
    rig.add("led")
    async with governed(rig, store_url=store_url) as within:
        first = await Caller(within).call("led:record", "kept", nonce="n1")
        crash = {"nonce": "n2", "fault": "after_execute_before_answer"}
        lost = await Caller(within).call("led:record", "lost", **crash)
        assert history.verdict(lost) == "unknown"
    async with governed(rig, store_url=store_url) as within:
        again = await Caller(within).call("led:record", "kept", nonce="n1")
        assert again["result"] == first["result"]
        unknown = await Caller(within).call("led:record", "lost", **crash)
        assert history.verdict(unknown) == "unknown"
    assert rig.ledger().runs() == {"n1": 1, "n2": 1}


@pytest.mark.req("R-BREAKER", "REQ-MCP-CALL-005", "REQ-MCP-CALL-002")
async def test_a_remote_server_that_refuses_connections_is_given_a_rest_and_comes_back(
    http_rig: HttpRig,
) -> None:
    http_rig.settings |= SETTINGS | {"retry_max_attempts": 2}
    remote = http_rig.add_remote()
    async with FaultProxy(remote.port) as proxy:
        http_rig.entries["led"]["url"] = f"http://127.0.0.1:{proxy.port}/mcp"
        async with governed(http_rig) as within:
            caller, breakers = Caller(within), within.governance.circuits.breakers
            await caller.call("led:record", nonce="before")
            seen = [Seen("before", [_result("before")])]
            for number in range(40):
                if breakers.state("id-led", "record") == "OPEN":
                    break
                nonce = f"n{number}"
                answer = await caller.call("led:record", nonce=nonce, fault="cut")
                seen.append(Seen(nonce, [answer]))
                if breakers.state("id-led", "*") == "OPEN":
                    break
            assert breakers.state("id-led", "*") == "OPEN"
            refused = await caller.call("led:record", nonce="refused")
            assert refused["error"]["code"] == -32008
            assert refused["error"]["data"]["retry_after_ms"] <= 1_000
            await until(lambda: _is_due(breakers), "the rest to be over")
            for number in range(3):
                answer = await caller.call("led:record", nonce=f"after{number}")
                seen.append(Seen(f"after{number}", [answer]))
                assert history.verdict(answer) == "result"
            assert breakers.state("id-led", "*") == "CLOSED"
    assert history.check(seen, http_rig.ledger()) == []


def _result(nonce: str) -> dict[str, Any]:
    return {"result": {"structuredContent": {"nonce": nonce}}}


def _is_due(breakers: Any) -> bool:
    import time

    (row,) = breakers.rows("id-led", "*")
    return row.retry_at is not None and time.time() >= row.retry_at
