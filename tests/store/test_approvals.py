"""Approvals in the store: one open request of a call, used once, and nothing without its MAC."""

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest

from mcp_junction.errors import NotFound, VaultError
from mcp_junction.policy.approvals import ApprovalState
from mcp_junction.store.database import Query
from mcp_junction.store.grants import ApprovalQuery, ApprovalRecord

APPROVER = Path(__file__).parent / "approver.py"
NOW = 1_000.0


def request(name="r1", binding="b1", at=NOW, **more) -> ApprovalRecord:
    given = {"expires_at": at + 60, "correlation_id": None, "arguments": b"sealed", **more}
    return ApprovalRecord(
        id=name, binding=binding, agent_id="a", asked_by="a", asked_role="agent", server_id="s",
        tool_name="delete", grant_id="g", risk="its name", preview="{}",
        requested_at=at, **given,
    )  # fmt: skip


async def approve(store, name="r1", at=NOW):
    return await store.approvals.decide(name, ApprovalState.APPROVED, at, "boss", None)


async def spend(store, binding="b1", at=NOW) -> bool:
    return await store._database.write(store.approvals.spend(binding, at))


async def test_the_same_call_finds_its_request_until_that_is_used_or_over(store):
    first, is_new = await store.approvals.add(request())
    assert is_new
    again, is_new = await store.approvals.add(request("r2"))
    assert (again.id, is_new) == (first.id, False)
    assert (await store.approvals.add(request("r3", "b2")))[1]
    late, is_new = await store.approvals.add(request("r4", at=NOW + 61))
    assert (late.id, is_new) == ("r4", True)
    assert (await store.approvals.get("r1")).state is ApprovalState.EXPIRED


async def test_an_approval_is_used_once_and_then_asked_for_anew(store):
    await store.approvals.add(request())
    assert not await spend(store)  # nobody has approved it
    assert (await approve(store)).decided_by == "boss"
    assert not await spend(store, "b2")
    assert await spend(store)
    assert not await spend(store)
    assert (await store.approvals.get("r1")).state is ApprovalState.USED
    _, is_new = await store.approvals.add(request("r2"))
    assert is_new


async def test_an_expired_or_denied_request_lets_nothing_pass(store):
    await store.approvals.add(request())
    await approve(store)
    assert not await spend(store, at=NOW + 60)
    await store.approvals.add(request("r2", "b2"))
    assert await store.approvals.decide("r2", ApprovalState.DENIED, NOW, "boss", "no") is not None
    assert not await spend(store, "b2")
    assert await approve(store, "r2") is None  # it was decided about
    await store.approvals.add(request("r3", "b3"))
    assert await approve(store, "r3", NOW + 60) is None
    with pytest.raises(NotFound):
        await approve(store, "none")


async def test_a_row_without_its_mac_is_no_approval(store):
    await store.approvals.add(request())
    await store._database.write(_run(Query("UPDATE approvals SET state = 'approved'")))
    assert not await spend(store)
    assert await store.approvals.read(ApprovalQuery(NOW)) == []
    made, is_new = await store.approvals.add(request("r2"))
    assert (made.id, is_new) == ("r2", True)


def _run(query):
    yield query


async def test_lists_are_newest_first_and_by_pages(store):
    for n in range(5):
        await store.approvals.add(request(f"r{n}", f"b{n}", at=NOW + n))
    await approve(store, "r4", NOW + 4)
    table = store.approvals
    pending = await table.read(ApprovalQuery(NOW + 10, is_open=True))
    assert [one.id for one in pending] == ["r3", "r2", "r1", "r0"]
    page = await table.read(ApprovalQuery(NOW + 10, before=(NOW + 3, "r3"), limit=2))
    assert [one.id for one in page] == ["r2", "r1"]
    later = request("r5", "b5", at=NOW + 10)
    assert await table.add(later, most=4) == (None, False)
    assert (await table.add(later, most=5))[1]
    assert (await table.add(later, most=1))[0] is not None  # it is there already
    assert await table.read(ApprovalQuery(NOW + 100, is_open=True)) == []
    assert await table.retire(NOW + 62.5) == 3


async def test_arguments_are_sealed_and_can_be_revealed(store):
    sealed = store.approvals.seal(b'{"a": 1}', "r1")
    assert b'"a"' not in sealed
    record = request(arguments=sealed)
    assert store.approvals.reveal(record) == b'{"a": 1}'
    with pytest.raises(VaultError):
        store.approvals.reveal(msgspec.structs.replace(record, id="r2"))


@pytest.mark.req("P-3")
async def test_of_all_processes_one_gets_each_approval(store, store_url):
    names = [f"b{n}" for n in range(20)]
    for name in names:
        await store.approvals.add(request(f"r{name}", name))
        await approve(store, f"r{name}")
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, APPROVER, store_url, bytes(range(32)).hex(), *names, *names,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(3)
    ]  # fmt: skip
    async with asyncio.timeout(60):
        for child in children:
            assert await child.stdout.readline() == b"ready\n"
        for child in children:
            child.stdin.write(b"\n")
        won = [json.loads(await child.stdout.readline()) for child in children]
        for child in children:
            await child.wait()
    assert sorted(name for some in won for name in some) == sorted(names)
