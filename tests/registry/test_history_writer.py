"""What happens to servers is written down, and one row that cannot be is no reason to stop."""

from tests.store.records import server

from mcp_junction.errors import StoreError
from mcp_junction.registry.server_lifecycle import HistoryWriter
from mcp_junction.store.records import HistoryEvent
from mcp_junction.tasks import TaskScope


async def test_a_row_that_no_store_takes_keeps_back_no_other(store, monkeypatch, caplog):
    known = await store.servers.add(server())
    tasks = TaskScope("test")
    chronicle = HistoryWriter(store, tasks)
    chronicle.begin()
    real = store.history.add

    async def choosy(server_id, event, details):
        if details.get("poison"):
            raise StoreError("takes no such value")
        return await real(server_id, event, details)

    monkeypatch.setattr(store.history, "add", choosy)
    chronicle.add(known.id, HistoryEvent.ERROR, {"poison": True})
    chronicle.set_status(known.id, {"error_message": "half \ud800"})
    await chronicle.flush()
    chronicle.add(known.id, HistoryEvent.CONNECTED, {})
    chronicle.set_status(known.id, {"status": "CONNECTED"})
    await chronicle.flush()
    found = await store.history.of(known.id)
    assert [row.event_type for row in found] == ["CONNECTED"]
    assert (await store.servers.get(known.id)).status == "CONNECTED"
    assert "a row of history is lost" in caplog.text
    await tasks.close()
