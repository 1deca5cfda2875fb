"""Servers are connected, disconnected, renamed and removed while they are in use."""

import asyncio

import pytest
from tests.plugin_rest import BOUND, SERVERS, registration
from tests.registry.toolbox import until

TOOLS = "/api/v1/aggregator/tools"


async def listed(served, **params) -> set[str]:
    found = (await served.client().get(TOOLS, params={"limit": 1000, **params})).json()
    return {tool["name"] for group in found["items"] for tool in group["tools"]}


@pytest.mark.req("AG-US6-AC1", "AG-US6-AC5")
async def test_a_server_is_connected_at_run_time_and_its_tools_are_found(served):
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    assert await listed(served) == set()
    answer = await served.client().post(f"{SERVERS}/peer/connect")
    assert (answer.status_code, answer.json()["status"]) == (200, "CONNECTED")
    assert "peer.echo" in await listed(served)
    again = await served.client().post(f"{SERVERS}/peer/connect")
    assert (again.status_code, again.json()["status"]) == (200, "CONNECTED")
    assert "already" in again.json()["message"]


@pytest.mark.req("AG-US6-AC2", "AG-US6-AC4", "AG-US6-AC5")
async def test_a_disconnected_servers_tools_are_neither_listed_nor_callable(served):
    await served.register()
    answer = await served.client().post(f"{SERVERS}/peer/disconnect")
    assert answer.json() == {"status": "DISCONNECTED", "pending_requests": 0}
    assert served.junction.servers["peer"].link is None
    assert await listed(served) == set()
    assert "peer.echo" in await listed(served, include_unavailable=True)
    assert (await served.call("peer.echo")).status_code == 503
    await served.client().post(f"{SERVERS}/peer/connect")
    assert "peer.echo" in await listed(served)
    assert (await served.call("peer.echo")).status_code == 200


@pytest.mark.req("AG-US6-AC3")
async def test_a_disconnect_lets_calls_end_and_says_how_many_there_were(served):
    await served.register()
    held = asyncio.create_task(served.call("peer.hold"))
    await served.busy()
    leaving = asyncio.create_task(served.client().post(f"{SERVERS}/peer/disconnect"))
    await until(lambda: served.junction.servers["peer"].is_shut)
    assert not leaving.done()
    # Nobody else gets in any more; the peer is released by its own link, as a server would be.
    assert (await served.call("peer.release")).status_code == 503
    assert not leaving.done()
    held.cancel()
    answer = await asyncio.wait_for(leaving, 20)
    assert answer.json() == {"status": "DISCONNECTED", "pending_requests": 1}


@pytest.mark.req("AG-US6-AC3")
async def test_a_forced_disconnect_ends_calls_at_once(served):
    await served.register()
    held = asyncio.create_task(served.call("peer.hold"))
    await served.busy()
    answer = await served.client().post(f"{SERVERS}/peer/disconnect", json={"force": True})
    assert answer.json() == {"status": "DISCONNECTED", "pending_requests": 1}
    told = (await held).json()
    assert told["context"]["delivery"] == "unknown"


@pytest.mark.req("AG-US6-AC6")
async def test_a_removed_server_is_gone_with_its_tools(served):
    record = await served.register()
    answer = await served.client().delete(f"{SERVERS}/peer")
    assert (answer.status_code, answer.content) == (204, b"")
    assert await listed(served, include_unavailable=True) == set()
    for path in ("", "/tools", "/history"):
        found = await served.client().get(f"{SERVERS}/{record['id']}{path}")
        assert (found.status_code, found.json()["error_code"]) == (404, "SERVER_NOT_FOUND")
    assert (await served.call("peer.echo")).status_code == 404
    assert await served.registry._context.store.tools.all() == []


@pytest.mark.req("AG-US7-AC6")
async def test_a_renamed_server_takes_its_tools_along(served):
    record = await served.register()
    answer = await served.client().patch(f"{SERVERS}/peer", json={"name": "other"})
    assert (answer.status_code, answer.json()["id"]) == (200, record["id"])
    names = await listed(served)
    assert "other.echo" in names
    assert not {name for name in names if name.startswith("peer.")}
    assert (await served.call("other.echo")).json()["metadata"]["routed_to"] == "other"
    assert (await served.call("peer.echo")).status_code == 404


@pytest.mark.req("AG-US7-AC1", "AG-US7-AC2", "AG-US7-AC5")
async def test_tools_are_listed_by_server_under_both_names(served):
    one, two = await served.register("one"), await served.register("two")
    found = (await served.client().get(TOOLS, params={"limit": 1000})).json()
    assert [group["server"]["id"] for group in found["items"]] == [one["id"], two["id"]]
    for group in found["items"]:
        name = group["server"]["name"]
        for tool in group["tools"]:
            assert tool["name"] == f"{name}.{tool['original_name']}"
            assert tool["source_server"] == group["server"]
            assert tool["is_external"] is True
            assert "input_schema" not in tool
    assert found["total"] == sum(len(group["tools"]) for group in found["items"])
    own = {"server": "two", "include_schemas": "true"}
    found = (await served.client().get(TOOLS, params=own)).json()
    assert [group["server"]["name"] for group in found["items"]] == ["two"]
    assert found["items"][0]["tools"][0]["input_schema"] == {"type": "object"}


async def test_a_list_of_tools_is_cut_into_pages_without_losing_one(served):
    await served.register("one")
    await served.register("two")
    whole, seen, cursor = await listed(served), [], None
    while True:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        found = (await served.client().get(TOOLS, params=params)).json()
        seen += [tool["name"] for group in found["items"] for tool in group["tools"]]
        cursor = found["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(whole)
    assert set(seen) == whole
    own = (await served.client().get(f"{SERVERS}/one/tools", params={"limit": 2})).json()
    assert len(own["items"]) == 2
    assert own["next_cursor"]


async def test_tools_are_discovered_again_when_somebody_asks(served):
    await served.register()
    assert "peer.echo" in await listed(served)
    answer = await served.client("orchestrator").post(f"{SERVERS}/peer/tools/refresh")
    told = answer.json()
    assert (answer.status_code, told["added"], told["removed"]) == (200, [], [])
    assert told["unchanged"] > 0
    await served.client().post(f"{SERVERS}/peer/disconnect")
    answer = await served.client().post(f"{SERVERS}/peer/tools/refresh")
    assert (answer.status_code, answer.json()["error_code"]) == (503, "SERVER_UNAVAILABLE")


@pytest.mark.req("J-HISTORY")
async def test_what_happened_to_a_connection_is_kept(served):
    await served.register()
    await served.client().post(f"{SERVERS}/peer/disconnect")
    found = (await served.client().get(f"{SERVERS}/peer/history")).json()
    assert [one["event_type"] for one in found["items"]] == ["DISCONNECTED", "CONNECTED"]
    newest = (await served.client().get(f"{SERVERS}/peer/history", params={"limit": 1})).json()
    assert newest["next_cursor"]
    assert newest["total"] == found["total"] == 2
    more = {"limit": 1, "cursor": newest["next_cursor"]}
    older = (await served.client().get(f"{SERVERS}/peer/history", params=more)).json()
    assert [one["event_type"] for one in older["items"]] == ["CONNECTED"]
    assert (older["total"], older["next_cursor"]) == (2, None)


async def test_the_state_counts_servers_and_tools(served):
    await served.register("one")
    await served.client().post(SERVERS, json=registration("two", auto_connect=False))
    state = {"total_tools": 0}
    async with asyncio.timeout(BOUND):
        while not state["total_tools"]:  # they are stored a moment after it is connected
            state = (await served.client("viewer").get("/api/v1/aggregator/state")).json()
    assert (state["total_servers"], state["connected_servers"]) == (2, 1)
    assert state["disconnected_servers"] == 1
    assert state["total_tools"] == state["indexed_tools"] + state["unindexed_tools"] > 0
    assert state["health_check_interval_seconds"] == 30
    health = (await served.client("viewer").get("/api/v1/aggregator/health")).json()
    assert health["status"] == "degraded"
    assert [one["name"] for one in health["servers"]] == ["one", "two"]


async def test_servers_can_be_shown_with_their_tools(served):
    await served.register()
    shown = (await served.client().get(f"{SERVERS}/peer?include_tools=true")).json()
    assert "peer.echo" in [tool["name"] for tool in shown["tools"]]
    found = (await served.client().get(f"{SERVERS}?include_tools=true")).json()
    assert found["items"][0]["tools"] == shown["tools"]
