"""Several want something of one server at one moment: each gets an answer that is true."""

import asyncio
from collections import Counter

from tests.plugin_rest import SERVERS, registration
from tests.registry.toolbox import Toolbox, tool, until

SILENT = {"command": "sleep", "args": ["600"]}
PEER = f"{SERVERS}/peer"


def codes(answers) -> Counter:
    return Counter(answer.status_code for answer in answers)


def queued(member) -> int:
    """How many wait for their turn with a server."""
    return len(member.lock._waiters or ())


async def test_of_many_registrations_of_one_name_one_is_made(served):
    asked = (served.client().post(SERVERS, json=registration()) for _ in range(20))
    assert codes(await asyncio.gather(*asked)) == {201: 1, 409: 19}
    assert (await served.client().get(SERVERS)).json()["total"] == 1
    assert len(await served.registry._context.store.servers.all()) == 1
    await served.until("peer", "CONNECTED")


async def test_of_many_changes_of_one_version_one_is_made(served):
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    mine = {"if-match": '"1"'}
    asked = [
        served.client().patch(PEER, json={"description": f"the {n}th"}, headers=mine)
        for n in range(10)
    ]
    answers = await asyncio.gather(*asked)
    assert codes(answers) == {200: 1, 412: 9}
    won = next(answer.json()["description"] for answer in answers if answer.status_code == 200)
    assert (await served.client().get(PEER)).json()["description"] == won


async def test_of_many_removals_one_is_made(served):
    await served.register()
    answers = await asyncio.gather(*(served.client().delete(PEER) for _ in range(5)))
    assert codes(answers) == {204: 1, 404: 4}


async def test_two_that_are_renamed_to_one_name_are_not_one(served):
    for name in ("one", "two"):
        await served.client().post(SERVERS, json=registration(name, auto_connect=False))
    answers = await asyncio.gather(
        *(served.client().patch(f"{SERVERS}/{n}", json={"name": "new"}) for n in ("one", "two"))
    )
    assert codes(answers) == {200: 1, 409: 1}
    shown = (await served.client().get(SERVERS)).json()["items"]
    assert len({one["name"] for one in shown} & {"one", "two"}) == 1


async def test_what_is_asked_of_a_server_that_is_being_removed_finds_none(served):
    """They wait for the turn of the one who removes it, and then there is nothing."""
    await served.register()
    member = served.registry._context.members.get("peer")
    await member.lock.acquire()
    client = served.client()
    removing = asyncio.create_task(client.delete(PEER))
    await until(lambda: queued(member) == 1)
    later = [
        asyncio.create_task(request)
        for request in (
            client.post(f"{PEER}/connect"),
            client.post(f"{PEER}/disconnect"),
            client.post(f"{PEER}/disconnect", json={"force": True}),
            client.patch(PEER, json={"name": "other"}),
            client.delete(PEER),
        )
    ]
    await until(lambda: queued(member) == 1 + len(later))
    member.lock.release()
    assert (await removing).status_code == 204
    for answer in await asyncio.gather(*later):
        assert (answer.status_code, answer.json()["error_code"]) == (404, "SERVER_NOT_FOUND")


async def test_a_removal_is_of_the_version_that_was_read(served):
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    member = served.registry._context.members.get("peer")
    await member.lock.acquire()
    changing = asyncio.create_task(served.client().patch(PEER, json={"description": "new"}))
    await until(lambda: queued(member) == 1)
    removing = asyncio.create_task(served.client().delete(PEER, headers={"if-match": '"1"'}))
    await until(lambda: queued(member) == 2)
    member.lock.release()
    assert (await changing).status_code == 200
    assert (await removing).json()["error_code"] == "VERSION_CONFLICT"
    assert (await served.client().get(PEER)).status_code == 200


async def test_who_does_not_want_to_wait_ends_the_waiting_of_others(served):
    await served.register()
    held = asyncio.create_task(served.call("peer.hold"))
    await served.busy()
    patient = asyncio.create_task(served.client().post(f"{PEER}/disconnect"))
    await until(lambda: served.junction.servers["peer"].is_shut)
    forced = await served.client().post(f"{PEER}/disconnect", json={"force": True})
    assert forced.json() == {"status": "DISCONNECTED", "pending_requests": 1}
    assert (await patient).json()["status"] == "DISCONNECTED"
    assert (await held).json()["context"]["delivery"] == "unknown"


async def test_a_server_that_never_answers_can_be_left_while_somebody_connects_it(served):
    body = registration(connection_config=SILENT, auto_connect=False)
    await served.client().post(SERVERS, json=body)
    connecting = asyncio.create_task(served.client().post(f"{PEER}/connect"))
    await served.until("peer", "CONNECTING")
    answer = await served.client().post(f"{PEER}/disconnect")
    assert answer.json()["status"] == "DISCONNECTED"
    assert (await connecting).json()["status"] == "DISCONNECTED"
    connecting = asyncio.create_task(served.client().post(f"{PEER}/connect"))
    await served.until("peer", "CONNECTING")
    assert (await served.client().delete(PEER)).status_code == 204
    assert (await connecting).status_code == 200


async def test_calls_end_well_or_say_so_while_their_server_is_renamed_and_removed(served):
    await served.register()
    await served.register("steady")
    outcomes: Counter = Counter()
    over, answered = asyncio.Event(), asyncio.Condition()

    async def calling(server_id: str) -> None:
        while not over.is_set():
            answer = await served.call("echo", server_id=server_id)
            outcomes[server_id, answer.status_code] += 1
            async with answered:
                answered.notify_all()

    async def more() -> None:
        """Wait until each caller has begun and ended another call, or nearly."""
        enough = outcomes.total() + 2 * len(callers)
        async with asyncio.timeout(20), answered:
            await answered.wait_for(lambda: outcomes.total() >= enough)

    shown = (await served.client().get(PEER)).json()
    callers = [asyncio.create_task(calling(ref)) for ref in (shown["id"], "steady") * 4]
    for name in ("other", "third", "peer"):
        await served.client().patch(f"{SERVERS}/{shown['id']}", json={"name": name})
        await more()
    assert {code for _, code in outcomes} == {200}, "a rename costs nobody a call"
    for _ in range(3):
        await served.client().post(f"{PEER}/disconnect")
        await served.client().post(f"{PEER}/connect")
    await served.client().delete(PEER)
    await more()
    over.set()
    await asyncio.gather(*callers)
    assert {code for ref, code in outcomes if ref == "steady"} == {200}
    assert {code for ref, code in outcomes if ref != "steady"} <= {200, 503, 404}
    assert outcomes[shown["id"], 404], "once it is gone it is not there"


class Fickle(Toolbox):
    """A server whose list of tools can be made to fail."""

    fails = False

    async def _answer(self, method, params):
        if method == "tools/list" and self.fails:
            return 200, {"error": {"code": -32000, "message": "the list is lost"}}
        return await super()._answer(method, params)


async def test_discoveries_asked_for_at_once_each_tell_what_they_found(served):
    async with Fickle() as server:
        far = {"transport_type": "HTTP", "connection_config": {"url": server.url}}
        await served.register("box", **far)
        server.tools = [tool("echo"), tool("new")]
        path = f"{SERVERS}/box/tools/refresh"
        answers = await asyncio.gather(*(served.client().post(path) for _ in range(5)))
        assert codes(answers) == {200: 5}
        assert [answer.json()["added"] for answer in answers].count(["new"]) == 1
        server.fails = True
        failed = await served.client().post(path)
        assert (failed.status_code, failed.json()["error_code"]) == (
            503, "SERVER_CONNECTION_FAILED",
        )  # fmt: skip
        assert "the list is lost" in failed.json()["detail"]
        assert (await served.call("box.new")).status_code == 200, "its lists stay as they were"
