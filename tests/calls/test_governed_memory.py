"""However a governed call ends, it leaves nothing that only the collector of garbage would find."""

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest
from tests.calls.governed_world import make_circuits
from tests.calls.test_fallback import AWAY, BOTH, LOST, REFUSED, FallbackWorld
from tests.calls.world import BOUND

from mcp_junction.calls.call import Carried
from mcp_junction.calls.stages.idempotency import RunOnce
from mcp_junction.governance.idempotency_claims import IdempotencyClaims
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.store.store import default_url, open_store
from mcp_junction.telemetry.bus import Bus

ENDS: dict[str, dict[str, Any]] = {
    "answer": {},
    "retried": {"one": REFUSED},
    "fallback": {"one": AWAY, "two": REFUSED},
    "all failed": {"one": REFUSED, "two": REFUSED, "three": REFUSED},
    "lost": {"one": LOST},
    "cancelled": {"one": AWAY, "two": lambda _: None},
    "cancelled while waiting": {"one": REFUSED},
}


def garbage_of(kinds: set[str]) -> Counter[str]:
    """What the collector finds now of these kinds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found = Counter(type(one).__name__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return Counter({kind: found[kind] for kind in kinds if found[kind]})


@pytest.mark.req("R-MEMORY")
@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_a_governed_call_leaves_no_cycle(tmp_path, vault, end, has_key):
    async with await open_store(default_url(tmp_path), vault) as store:
        claims = IdempotencyClaims(store.claims, store.audit, "writer", SystemClock(), 600.0)
        circuits = make_circuits(store, Bus(store.events), threshold=10_000)
        world = FallbackWorld(
            BOTH,
            circuits=circuits,
            idempotency=RunOnce(claims),
        )
        world.ends |= ENDS[end]
        gc.collect()
        gc.disable()
        try:
            for number in range(3):
                await call_once(world, end, f"k{number}" if has_key else None)
            world.sink.events.clear()
            for server in world.servers.values():
                server.wire.flights.clear()
                server.wire.cancelled.clear()
            await asyncio.sleep(0)
            left = garbage_of({"Call", "Outcome", "Attempt", "Flight", "CallEnded", "Failure"})
        finally:
            gc.enable()
        assert not left


async def call_once(world: FallbackWorld, end: str, key: str | None) -> None:
    call = world.make()
    call.carried = Carried(idempotency_key=key)
    running = world.start(call)
    if end == "cancelled":
        await world.flying("two")
        call.cancel("never mind")
    elif end == "cancelled while waiting":
        async with asyncio.timeout(BOUND):
            while not world.counted:  # noqa: ASYNC110 - a call on its way
                await asyncio.sleep(0)
        call.cancel("never mind")
    async with asyncio.timeout(BOUND):
        while not running.done():
            await world.clock.advance(1.0)
    await running
