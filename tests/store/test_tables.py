"""History, keys, settings and events, on every backend."""

import asyncio
import threading

import msgspec
import pytest
from tests.store.records import server

from mcp_junction.errors import AlreadyExists, NotFound, VersionConflict
from mcp_junction.store import servers as history
from mcp_junction.store.database import Query, bump
from mcp_junction.store.records import HistoryEvent, KeyRecord, NewEvent


def key(name: str = "k1", **fields) -> KeyRecord:
    given = {"role": "agent", "agent": "bot", "sha256": "00", "created_by": "test"}
    return KeyRecord(**{"id": name, "created_at": 1.0, **given, **fields})


async def test_history_is_told_newest_first_in_pages(store):
    one = await store.servers.add(server())
    for event in HistoryEvent:
        await store.history.add(one.id, event, {"why": event.lower()})
    first = await store.history.of(one.id, limit=3)
    rest = await store.history.of(one.id, before=first[-1].id)
    assert [entry.event_type for entry in first + rest] == list(reversed(HistoryEvent))
    assert first[0].details == {"why": "reconnect"}
    with pytest.raises(NotFound):
        await store.history.add("nobody", HistoryEvent.ERROR)


async def test_history_is_bounded(store, monkeypatch):
    monkeypatch.setattr(history, "KEPT", 20)
    monkeypatch.setattr(history, "_PRUNE_EVERY", 10)
    one = await store.servers.add(server())
    for n in range(50):
        await store.history.add(one.id, HistoryEvent.ERROR, {"n": n})
    kept = await store.history.of(one.id, limit=1000)
    assert 20 <= len(kept) <= 30
    assert kept[0].details == {"n": 49}


async def test_a_revoked_key_stays_revoked(store):
    await store.keys.add(key("k1"))
    await store.keys.add(key("k2", created_at=2.0))
    with pytest.raises(AlreadyExists):
        await store.keys.add(key("k1"))
    first = await store.keys.revoke("k1", 5.0, "admin")
    assert (first.revoked_at, first.revoked_by) == (5.0, "admin")
    assert await store.keys.revoke("k1", 9.0, "other") == first
    kept = [msgspec.structs.replace(one, mac=None) for one in await store.keys.all()]
    assert kept == [msgspec.structs.replace(first, mac=None), key("k2", created_at=2.0)]
    with pytest.raises(NotFound):
        await store.keys.revoke("k3", 1.0, "admin")


async def test_settings_hold_any_json_and_have_versions(store):
    assert await store.settings.find("x") is None
    first = await store.settings.put("x", {"a": [1, None, "é"]}, "admin", version=0)
    assert (first.value, first.version) == ({"a": [1, None, "é"]}, 1)
    second = await store.settings.put("x", False, "admin", version=1)
    assert (second.value, second.version) == (False, 2)
    with pytest.raises(VersionConflict) as refused:
        await store.settings.put("x", 1, "admin", version=1)
    assert refused.value.found == 2
    assert await store.settings.all() == {"x": second}
    assert (await store.settings.put("x", 3, "admin")).version == 3


async def test_events_are_numbered_without_gaps_whoever_writes_them(opener):
    stores = [await opener() for _ in range(3)]
    assert await stores[0].events.bounds() == (1, 0)
    await asyncio.gather(
        *(
            store.events.append([NewEvent("t", {"n": n}), NewEvent("u", {}, subject="s")])
            for store in stores
            for n in range(20)
        )
    )
    found = await stores[1].events.after(0)
    assert [event.seq for event in found] == list(range(1, 121))
    assert await stores[2].events.bounds() == (1, 120)
    resumed = await stores[0].events.after(100, types=["u"], limit=5)
    assert [event.seq for event in resumed] == [102, 104, 106, 108, 110]
    assert resumed[0].subject == "s"
    assert await stores[0].events.append([]) == []


async def test_only_the_newest_events_are_kept_and_their_numbers_go_on(opener):
    store = await opener(kept_events=100)
    for n in range(30):
        await store.events.append([NewEvent("t", {"n": n, "i": i}) for i in range(10)])
    first, last = await store.events.bounds()
    assert last == 300
    assert 190 <= first <= 201
    assert (await store.events.after(first - 1, limit=1))[0].seq == first
    again = await opener(kept_events=100)
    assert (await again.events.append([NewEvent("t", {})]))[0].seq == 301


async def test_what_is_done_after_a_write_is_done_once_it_is_committed(store):
    database, seen = store.keys._database, []

    def script(fails=False):
        yield bump("after")
        if fails:
            raise KeyError("undone")

    def after():
        seen.append(threading.current_thread())
        if len(seen) == 2:
            raise OSError("no disk")

    await database.write(script(), after=after)
    assert len(seen) == 1
    assert threading.main_thread() not in seen
    with pytest.raises(KeyError):
        await database.write(script(fails=True), after=after)
    assert len(seen) == 1
    writes = (database.write(script(), after=after), database.write(script()))
    failed, passed = await asyncio.gather(*writes, return_exceptions=True)
    assert (type(failed), passed) == (OSError, None)
    query = Query("SELECT value FROM counters WHERE topic = ?", ("after",))
    assert await database.read(query, lambda rows: rows[0][0]) == 3
