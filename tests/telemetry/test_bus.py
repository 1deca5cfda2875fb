"""The bus: numbered events that a reader can take up again, however slow it is."""

import asyncio
from contextlib import aclosing

import pytest
from tests.registry.toolbox import until

from mcp_junction.errors import StoreError, StoreUnavailable
from mcp_junction.telemetry import bus as buses
from mcp_junction.telemetry.bus import GAP, Bus


async def take(stream, count: int) -> list:
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found.append(await anext(stream))
    return found


async def test_events_come_in_their_order_with_their_numbers(store):
    async with Bus(store.events) as bus:
        stream = bus.subscribe(after=0)
        for n in range(3):
            bus.publish("server.registered", {"n": n}, f"s{n}")
        found = await take(stream, 3)
        assert [event.seq for event in found] == [1, 2, 3]
        assert [event.data["n"] for event in found] == [0, 1, 2]
        assert (found[1].type, found[1].subject) == ("server.registered", "s1")
        await stream.aclose()


async def test_a_reader_takes_up_where_it_left_also_after_a_restart(store):
    async with Bus(store.events) as bus:
        for n in range(5):
            bus.publish("a", {"n": n})
    async with Bus(store.events) as bus, aclosing(bus.subscribe(after=3)) as stream:
        bus.publish("a", {"n": 5})
        assert [event.seq for event in await take(stream, 3)] == [4, 5, 6]


async def test_who_begins_now_hears_only_what_follows_and_only_what_it_wants(store):
    async with Bus(store.events) as bus:
        bus.publish("a", {"n": 0})
        await bus.flush()
        async with aclosing(bus.subscribe(types=["b"])) as stream:
            waiting = asyncio.ensure_future(take(stream, 1))
            await until(lambda: bus.has_readers)
            bus.publish("a", {"n": 1})
            bus.publish("b", {"n": 2})
            (event,) = await waiting
            assert (event.type, event.seq) == ("b", 3)


async def test_a_reader_that_is_cancelled_as_an_event_comes_stops(store):
    async def read(bus: Bus) -> None:
        async with aclosing(bus.subscribe()) as stream:
            async for _ in stream:
                pass

    async with Bus(store.events) as bus:
        reading = asyncio.ensure_future(read(bus))
        await until(lambda: any(reader._more._waiters for reader in bus._readers))
        bus.publish_transient("a", {})
        reading.cancel()
        await asyncio.wait({reading}, timeout=10)
        was_cancelled = reading.cancelled()
        reading.cancel()
        assert was_cancelled


async def test_events_of_another_process_are_heard_too(opener):
    here, there = await opener(), await opener()
    async with (
        Bus(here.events) as one,
        Bus(there.events) as other,
        aclosing(one.subscribe(after=0)) as stream,
    ):
        other.publish("a", {"of": "other"})
        await other.flush()
        one.publish("a", {"of": "one"})
        assert [event.data["of"] for event in await take(stream, 2)] == ["other", "one"]


async def test_a_reader_that_comes_too_late_is_told_what_it_missed(opener):
    store = await opener(kept_events=10)
    async with Bus(store.events) as bus:
        for n in range(100):
            bus.publish("a", {"n": n})
        await bus.flush()
        async with aclosing(bus.subscribe(after=0)) as stream:
            gap, first = await take(stream, 2)
            assert gap.type == GAP
            assert gap.data["missed"] == first.seq - 1 > 0


async def test_a_reader_that_falls_behind_is_told_what_it_missed(opener, monkeypatch):
    monkeypatch.setattr(buses, "RECENT", 5)
    store = await opener(kept_events=10)
    async with Bus(store.events) as bus, aclosing(bus.subscribe(after=0)) as stream:
        bus.publish("a", {"n": 0})
        (first,) = await take(stream, 1)
        for n in range(1, 100):
            bus.publish("a", {"n": n})
        await bus.flush()
        gap, following = await take(stream, 2)
        assert gap.type == GAP
        assert gap.data["missed"] == following.seq - first.seq - 1 > 0


async def test_what_passes_is_for_those_who_read_now_and_has_no_number(store):
    async with Bus(store.events) as bus:
        bus.publish_transient("call.completed", {"n": 0})
        async with aclosing(bus.subscribe()) as stream:
            waiting = asyncio.ensure_future(take(stream, 1))
            await until(lambda: bus.has_readers)
            for n in range(1, 3 * buses.TRANSIENT_MOST):
                bus.publish_transient("call.completed", {"n": n})
            (event,) = await waiting
            assert event.seq == 0
            assert event.data["n"] >= 1
            rest = await take(stream, buses.TRANSIENT_MOST - 1)
            assert rest[-1].data["n"] == 3 * buses.TRANSIENT_MOST - 1, "the newest are kept"
    assert await store.events.bounds() == (1, 0)


async def test_a_store_that_is_away_delays_events_and_loses_none_of_a_bounded_number(
    store, monkeypatch
):
    append, broken, refused = store.events.append, True, 0

    async def unsteady(events):
        nonlocal refused
        if broken:
            refused += 1
            raise StoreUnavailable("away")
        return await append(events)

    monkeypatch.setattr(store.events, "append", unsteady)
    monkeypatch.setattr(buses, "MOST", 20)
    monkeypatch.setattr(buses, "_RETRY", 0.02)
    async with Bus(store.events) as bus:
        for n in range(25):
            bus.publish("a", {"n": n})
        await until(lambda: refused >= 3)
        assert bus.lost == 5
        broken = False
        await bus.flush()
    assert len(await store.events.after(0)) == 20


@pytest.mark.parametrize("readers", [50])
async def test_many_readers_each_get_everything(store, readers):
    async with Bus(store.events) as bus:

        async def read() -> list[int]:
            async with aclosing(bus.subscribe(after=0)) as stream:
                return [event.seq for event in await take(stream, 200)]

        reading = [asyncio.ensure_future(read()) for _ in range(readers)]
        for n in range(200):
            bus.publish("a", {"n": n})
            if n % 20 == 0:
                await bus.flush()
        assert {tuple(await one) for one in reading} == {tuple(range(1, 201))}


async def test_an_event_that_no_store_takes_is_lost_alone(store, monkeypatch, caplog):
    real = store.events.append

    async def choosy(events):
        if any(event.type == "poison" for event in events):
            raise StoreError("takes no such value")
        return await real(events)

    monkeypatch.setattr(store.events, "append", choosy)
    async with Bus(store.events) as bus:
        bus.publish("poison", {})
        await bus.flush()
        bus.publish("good", {})
        await bus.flush()
        assert [event.type for event in await store.events.after(0)] == ["good"]
        assert bus.lost == 1
    assert "events cannot be stored" in caplog.text
