"""Claims on idempotency keys: one runs, the others wait or are answered, on any store."""

import asyncio
import time

import pytest
from tests.governance.claiming import BOUND, KEY, Claimant, kept

from mcp_junction.errors import StoreUnavailable
from mcp_junction.resilience.idempotency import KEPT_FOR, ClaimAction, ClaimEnd
from mcp_junction.store.audit_records import AuditWriter
from mcp_junction.tasks import TaskScope

OTHER = KEY._replace(key="k2")


async def begun() -> None:
    """Let what was started come to where it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def first(store, opener):
    log = await opener.log(store)
    return Claimant(store, log.writer)


@pytest.fixture
async def second(store, opener):
    log = await opener.log(store)
    return Claimant(store, log.writer)


@pytest.mark.req("REQ-MCP-CALL-003", "R-IDEMPOTENCY")
async def test_the_first_runs_and_the_others_get_its_result(first, second):
    claim_id = await first.begin()
    waiting = [asyncio.ensure_future(one.claim()) for one in (first, second)]
    await begun()
    assert not any(one.done() for one in waiting)
    await first.keep(claim_id, b'{"n":1}')
    found = await asyncio.wait_for(asyncio.gather(*waiting), BOUND)
    assert [bytes(one.kept.payload) for one in found] == [b'{"n":1}'] * 2
    assert (await second.claim()).kept == (await first.claim()).kept
    assert len(first.claims) == len(second.claims) == 0


@pytest.mark.req("REQ-MCP-CALL-003", "R-IDEMPOTENCY")
async def test_other_arguments_are_a_conflict_whether_it_runs_or_has_ended(first, second):
    claim_id = await first.begin("x")
    for one in (first, second):
        assert (await one.claim("y")).action is ClaimAction.CONFLICT
    await first.keep(claim_id)
    for one in (first, second):
        assert (await one.claim("y")).action is ClaimAction.CONFLICT


async def test_a_key_is_the_agents_the_tools_and_the_servers_own(first):
    await first.begin()
    for other in (
        KEY._replace(agent_id="agent:b"),
        KEY._replace(server_id="s2"),
        KEY._replace(tool_name="t2"),
        OTHER,
    ):
        await first.begin(key=other)


@pytest.mark.req("R-IDEMPOTENCY")
async def test_what_was_not_sent_may_be_run_by_the_next(first, second):
    claim_id = await first.begin()
    waiting = [asyncio.ensure_future(one.claim()) for one in (first, second)]
    await asyncio.sleep(0)
    await first.claims.settle(claim_id, ClaimEnd.RELEASE)
    done, pending = await asyncio.wait(waiting, timeout=BOUND, return_when=asyncio.FIRST_COMPLETED)
    (winner,) = done
    assert winner.result().action is ClaimAction.RUN
    owner = first if winner is waiting[0] else second
    await owner.keep(winner.result().claim_id)
    (other,) = pending
    assert (await asyncio.wait_for(other, BOUND)).action is ClaimAction.REPLAY


@pytest.mark.req("R-IDEMPOTENCY")
@pytest.mark.parametrize(
    ("end", "action"),
    [
        (ClaimEnd.MARK_UNKNOWN, ClaimAction.UNKNOWN),
        (ClaimEnd.MARK_EXECUTED, ClaimAction.EXECUTED),
    ],
)
async def test_what_may_have_run_is_not_run_again(first, second, end, action):
    await first.claims.settle(await first.begin(), end)
    for one in (first, second):
        assert (await one.claim()).action is action


@pytest.mark.req("REQ-MCP-CALL-003", "R-IDEMPOTENCY")
async def test_after_a_crash_it_is_unknown_and_after_a_restart_a_result_is_still_there(
    store, opener
):
    crashed = opener.new_log(store)
    now = time.time()
    gone = AuditWriter(crashed.writer, "key", "another-host", 1, now - 100, now - 100)
    await store.audit.enter(gone)
    before = Claimant(store, crashed.writer)
    await before.keep(await before.begin(), b'{"kept":true}')
    await before.begin(key=OTHER)
    log = await opener.log(store)
    after = Claimant(store, log.writer)
    assert bytes((await after.claim()).kept.payload) == b'{"kept":true}'
    assert (await after.claim(key=OTHER)).action is ClaimAction.UNKNOWN


@pytest.mark.req("R-IDEMPOTENCY")
async def test_the_owner_may_still_say_what_became_of_a_call_that_counted_as_unknown(
    first, second, store
):
    claim_id = await first.begin()
    await second.claims.settle(claim_id, ClaimEnd.MARK_UNKNOWN)
    await first.keep(claim_id)
    assert (await second.claim()).action is ClaimAction.REPLAY
    await second.claims.settle(claim_id, ClaimEnd.MARK_UNKNOWN)
    assert (await second.claim()).action is ClaimAction.REPLAY


@pytest.mark.req("R-IDEMPOTENCY")
async def test_a_parked_call_keeps_its_claim_until_it_is_given_up(store, opener):
    log, now = await opener.log(store), [time.time()]
    first = Claimant(store, log.writer, now=lambda: now[0])
    claim_id = await first.begin()
    await first.claims.settle(claim_id, ClaimEnd.HOLD)
    waiting = asyncio.ensure_future(first.claim())
    await begun()
    tasks = TaskScope("claims")
    tasks.supervise("claims", first.claims.run)
    first.claims.give_up(claim_id)
    assert (await asyncio.wait_for(waiting, BOUND)).action is ClaimAction.UNKNOWN
    await tasks.close()
    parked = await first.begin(key=OTHER)
    await first.claims.settle(parked, ClaimEnd.HOLD)
    now[0] += 601.0
    assert (await first.claim(key=OTHER)).action is ClaimAction.UNKNOWN


async def test_who_waits_ends_when_its_call_does(first, second):
    await first.begin()
    for one in (first, second):
        waiting = asyncio.ensure_future(one.claim())
        await begun()
        one.ending.set()
        assert await asyncio.wait_for(waiting, BOUND) is None
    assert len(second.claims) == 0


async def test_a_call_that_may_not_run_only_looks(first):
    assert (await first.claim(may_run=False)).claim_id == ""
    claim_id = await first.begin()
    await first.keep(claim_id)
    assert (await first.claim(may_run=False)).action is ClaimAction.REPLAY


@pytest.mark.req("R-IDEMPOTENCY")
async def test_results_are_kept_for_a_day_sealed_and_bound_to_their_row(store, opener, dump):
    log, now = await opener.log(store), [time.time()]
    first = Claimant(store, log.writer, now=lambda: now[0])
    secret = b'{"text":"very-secret-canary"}'
    await first.keep(await first.begin(), secret)
    await first.keep(await first.begin(key=OTHER), b'{"other":1}')
    assert b"very-secret-canary" not in await dump()
    await dump.run(
        "UPDATE idempotency_claims SET result ="
        " (SELECT result FROM idempotency_claims WHERE key = 'k1') WHERE key = 'k2'"
    )
    assert (await first.claim(key=OTHER)).action is ClaimAction.RUN, "a changed row is none"
    now[0] += KEPT_FOR - 1
    assert (await first.claim()).action is ClaimAction.REPLAY
    assert await first.claims.retire() == 0
    now[0] += 2
    assert await first.claims.retire() == 1
    assert (await first.claim()).action is ClaimAction.RUN


async def test_an_old_claim_is_replaced_although_it_was_not_removed_yet(store, opener):
    log, now = await opener.log(store), [time.time()]
    first = Claimant(store, log.writer, now=lambda: now[0])
    await first.keep(await first.begin())
    now[0] += KEPT_FOR + 1
    await first.begin("other arguments")


@pytest.mark.req("REQ-MCP-CALL-003", "F-13")
async def test_of_fifty_callers_in_two_processes_one_runs(first, second):
    ran = []

    async def call(one: Claimant) -> bytes:
        verdict = await one.claim()
        if verdict.action is ClaimAction.RUN:
            ran.append(verdict.claim_id)
            await asyncio.sleep(0)
            await one.keep(verdict.claim_id, b'{"ran":1}')
            return b'{"ran":1}'
        return bytes(verdict.kept.payload)

    answers = await asyncio.gather(*(call(one) for _ in range(25) for one in (first, second)))
    assert len(ran) == 1
    assert answers == [b'{"ran":1}'] * 50


class BrokenTable:
    """A table whose store is away until it is mended."""

    def __init__(self, table) -> None:
        self.table = table
        self.is_away = False

    def __getattr__(self, name):
        method = getattr(self.table, name)

        async def run(*args):
            if self.is_away:
                raise StoreUnavailable("it is away")
            return await method(*args)

        return method if name == "open" else run


@pytest.mark.req("R-IDEMPOTENCY")
async def test_without_the_store_nothing_is_claimed_and_what_ended_is_stored_later(
    store, opener, monkeypatch
):
    monkeypatch.setattr("mcp_junction.governance.idempotency_claims._RETRY", 0.01)
    store.claims = broken = BrokenTable(store.claims)
    log = await opener.log(store)
    first = Claimant(store, log.writer)
    claim_id = await first.begin()
    waiting = asyncio.ensure_future(first.claim())
    await begun()
    broken.is_away = True
    await first.keep(claim_id, b'{"n":1}')
    assert bytes((await asyncio.wait_for(waiting, BOUND)).kept.payload) == b'{"n":1}'
    with pytest.raises(StoreUnavailable):
        await first.claim(key=OTHER)
    with pytest.raises(StoreUnavailable):
        await first.claim()
    broken.is_away = False
    tasks = TaskScope("claims")
    tasks.supervise("claims", first.claims.run)
    assert (await first.claim()).kept == kept(b'{"n":1}')
    async with asyncio.timeout(BOUND):
        while len(first.claims):  # noqa: ASYNC110 - what is queued is stored in the background
            await asyncio.sleep(0.01)
    await tasks.close()
    assert (await first.claim(key=OTHER)).action is ClaimAction.RUN
