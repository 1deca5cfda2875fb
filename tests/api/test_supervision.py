"""Long-lived tasks of the service: one that fails is run again, and is shown to be down."""

import asyncio

import pytest
from tests.plugin_rest import Served
from tests.registry.toolbox import until
from tests.telemetry.grammar import Metrics

from mcp_junction.errors import StoreUnavailable

BOUND = 20


async def readiness(served: Served) -> tuple[int, list[str]]:
    answer = await served.client(None).get("/readyz")
    return answer.status_code, answer.json().get("down", [])


async def until_ready(served: Served) -> None:
    async with asyncio.timeout(BOUND):
        while (await readiness(served))[0] != 200:  # noqa: ASYNC110 - it is asked over HTTP
            await asyncio.sleep(0.02)


def break_keys(served: Served, patch) -> None:
    patch.setattr(served.ring, "refresh", broken)


def break_audit(served: Served, patch) -> None:
    patch.setattr(served.audit, "_next_batch", broken_at_once)
    served.audit.record(served.audit.entry("call", "bot", "tools/call"))


def break_events(served: Served, patch) -> None:
    patch.setattr(served.bus, "_remember", broken_at_once)
    served.bus.publish("server.updated", {})
    wait = asyncio.Event.wait

    async def publish_and_wait(event: asyncio.Event) -> None:
        served.bus.publish("server.updated", {})
        await wait(event)

    patch.setattr(served.bus._wake, "wait", lambda: publish_and_wait(served.bus._wake))


def break_history(served: Served, patch) -> None:
    history = served.registry._lifecycle._history
    patch.setattr(history, "_write", broken)
    history.set_status("nobody", {"status": "ERROR"})


def break_deadlines(served: Served, patch) -> None:
    deadlines = served.junction._deadlines
    patch.setattr(deadlines, "sweep", broken_at_once)
    deadlines._some.set()


def break_parked(served: Served, patch) -> None:
    patch.setattr("mcp_junction.eras.parked.SWEEP_EVERY", 0.0)
    patch.setattr(served.junction.parked_calls, "sweep", broken_at_once)
    served.junction.parked_calls._some.set()


async def broken(*_: object, **__: object) -> None:
    raise LookupError("mislaid")


def broken_at_once(*_: object, **__: object) -> None:
    raise LookupError("mislaid")


BREAKS = {
    "keys": break_keys,
    "audit": break_audit,
    "events": break_events,
    "history": break_history,
    "deadlines": break_deadlines,
    "parked calls": break_parked,
}


@pytest.mark.req("R-SUPERVISE")
@pytest.mark.parametrize("task", BREAKS)
async def test_a_task_that_fails_is_shown_to_be_down_and_is_run_again(gateway, task):
    served = await gateway()
    await until_ready(served)
    supervision = served.junction.tasks.supervision
    with pytest.MonkeyPatch.context() as patch:
        BREAKS[task](served, patch)
        await until(lambda: supervision.failures[task] >= 2)
        assert await readiness(served) == (503, [task])
        found = Metrics((await served.client("viewer").get("/metrics")).content)
        assert found.value("tasks_down", task=task) == 1
        assert found.value("task_failures_total", task=task) >= 2
    await until_ready(served)
    found = Metrics((await served.client("viewer").get("/metrics")).content)
    assert found.value("tasks_down", task=task) == 0
    assert found.value("task_failures_total", task=task) >= 2


@pytest.mark.req("R-SUPERVISE")
async def test_a_check_of_one_server_that_fails_is_counted_and_keeps_the_service_ready(
    gateway, monkeypatch
):
    served = await gateway(health_interval_ms=30)
    await served.register()
    monkeypatch.setattr(served.registry._lifecycle._watch._probes, "observe_probe", broken_at_once)
    supervision = served.junction.tasks.supervision
    await until(lambda: supervision.failures["health checks"] >= 1)
    await until_ready(served)
    assert (await served.call("peer.echo")).status_code == 200


@pytest.mark.req("R-SUPERVISE")
async def test_an_audit_that_the_store_does_not_take_is_shown_to_be_down(gateway):
    served = await gateway()
    await until_ready(served)

    async def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("no such table")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.audit._trail, "append", refuse)
        served.audit.record(served.audit.entry("call", "bot", "tools/call"))
        await until(lambda: served.audit.is_failing)
        assert await readiness(served) == (503, ["audit"])
    await until_ready(served)
