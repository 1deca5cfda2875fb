"""Several gateways over one store: one refresh for all of them, whoever dies in the middle."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.credentials.world import entry, running, text_of, until
from tests.fakes.issuer import FakeIssuer, Fault

from mcp_junction.config.auth import ServerAuth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials import source as sources
from mcp_junction.credentials.credentials import Credentials
from mcp_junction.credentials.kinds import LEASE
from mcp_junction.credentials.source import WAIT, AuthState
from mcp_junction.errors import StoreUnavailable
from mcp_junction.store.credentials import (
    CREDENTIALS_TOPIC,
    CredentialRecord,
    CredentialTables,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def issuer():
    async with FakeIssuer(era="2026-07-28") as one:
        yield one


@pytest.fixture
async def worlds(issuer, opener):
    """Three gateways, each with a connection to the store of its own, all signed in."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(running(await opener(), {"crm": entry(issuer)}))
            for _ in range(3)
        ]
        await found[0].settled()
        await found[0].sign_in()
        for world in found[1:]:
            await world.settled()
            await world.credentials.load()
        for world in found:
            await world.connected()
        yield found


@pytest.mark.req("NFR-SEC3")
async def test_three_gateways_renew_a_rotating_token_once_and_no_call_fails(issuer, worlds):
    for _ in range(3):
        before = issuer.count("refresh")
        issuer.revoke_access()
        calls = [world.call(nonce=n) for n in range(60) for world in worlds]
        outcomes = await asyncio.gather(*calls)
        assert {text_of(outcome) for outcome in outcomes} == {"alice"}
        assert issuer.count("refresh") == before + 1
    assert issuer.count("reuse") == 0


async def test_a_lease_whose_holder_died_is_taken_over_while_calls_wait(issuer, worlds):
    assert 2 * LEASE <= WAIT, "a call waits for the lease to end, and for its own renewal"
    first, second, _ = worlds
    source = first.source()
    for world in worlds:
        world.source().lease_seconds = 0.6
    issuer.faults["/token"] = Fault(503, delay=30.0, times=1)
    renewing = asyncio.ensure_future(source.refresh_now())
    await until(lambda: issuer.faults["/token"].times == 0)
    for task in list(first.credentials.tasks._tasks):  # as kill -9 does: nothing is given back
        task.cancel()
    await asyncio.wait({renewing}, timeout=5)
    issuer.revoke_access()
    assert text_of(await second.call()) == "alice"
    assert issuer.count("refresh") == 1
    assert issuer.count("reuse") == 0


async def test_whoever_renews_keeps_the_lease_however_long_the_issuer_takes(issuer, worlds):
    for world in worlds:
        world.source().lease_seconds = 1.5
    issuer.faults["/token"] = Fault(delay=4.0, times=1)
    renewing = asyncio.ensure_future(worlds[0].source().refresh_now())
    await until(lambda: issuer.faults["/token"].times == 0)
    issuer.revoke_access()
    outcomes = await asyncio.gather(*(world.call() for world in worlds[1:]))
    assert {text_of(outcome) for outcome in outcomes} == {"alice"}
    await renewing
    assert issuer.count("refresh") == 1
    assert issuer.count("reuse") == 0


async def test_a_lease_that_came_too_late_to_be_sure_of_is_not_used(issuer, worlds, monkeypatch):
    """As when a process was stopped for a while: another may have taken over since."""
    source, delays = worlds[0].source(), [1.0]
    source.lease_seconds = 1.0
    lease = CredentialTables.lease

    async def answers_late(self, *args):
        found = await lease(self, *args)
        if delays:
            assert issuer.count("refresh") == 0
            await asyncio.sleep(delays.pop())
        return found

    monkeypatch.setattr(CredentialTables, "lease", answers_late)
    taken = []
    monkeypatch.setattr(source, "_refresh", lambda *_: taken.append(delays) or asyncio.sleep(0))
    await source.refresh_now()
    assert taken == [[]], "it was taken once more, and only then used"


async def test_nobody_uses_a_token_that_was_used_up_while_its_answer_waits_to_be_stored(
    issuer, worlds, monkeypatch
):
    failing, extended = [True], []
    save, lease, owner = CredentialTables.save, CredentialTables.lease, worlds[0].credentials

    async def counts(self, record, process, seconds):
        extended.append(process)
        return await lease(self, record, process, seconds)

    async def fails(self, *args, **more):
        if self is (await owner.open_tables()) and failing:
            raise StoreUnavailable("away")
        return await save(self, *args, **more)

    monkeypatch.setattr(CredentialTables, "save", fails)
    monkeypatch.setattr(CredentialTables, "lease", counts)
    for world in worlds:
        world.source().lease_seconds = 1.5
    issuer.revoke_access()
    await worlds[0].source().refresh_now()
    calling = asyncio.ensure_future(worlds[1].call())
    await until(lambda: extended.count(owner.process_id) > 10)  # for two leases
    assert not calling.done()
    failing.clear()
    assert text_of(await calling) == "alice"
    assert issuer.count("refresh") == 1
    assert issuer.count("reuse") == 0


async def test_an_answer_that_cannot_be_stored_is_not_used_and_not_lost(
    issuer, worlds, monkeypatch
):
    monkeypatch.setattr(sources, "_RETRY_LEAST", 0.05)
    world = worlds[0]
    save, failures = CredentialTables.save, [StoreUnavailable("away")] * 2

    async def fails(self, *args, **more):
        if failures:
            raise failures.pop()
        return await save(self, *args, **more)

    monkeypatch.setattr(CredentialTables, "save", fails)
    before = world.source().current
    await world.source().refresh_now()
    assert world.source().current is before
    await until(lambda: world.source().current is not before)
    assert issuer.count("refresh") == 1
    issuer.revoke_access()
    assert text_of(await world.call()) == "alice"
    assert issuer.count("reuse") == 0


async def test_a_row_that_was_edited_or_moved_does_not_open(issuer, worlds, opener):
    store = await opener()
    database = store.credentials._database
    from mcp_junction.store.database import Query

    def script(sql, *args):
        yield Query(sql, args)

    await database.write(script("UPDATE credentials SET subject = ?", "agent:eve"))
    async with running(store, {"crm": entry(issuer, type="oauth", per="agent")}) as world:
        await world.settled()
        from mcp_junction.policy.principal import Principal, Role

        eve = world.source(principal=Principal("eve", Role.AGENT))
        assert eve.state is AuthState.NEEDS_SIGN_IN
        assert eve.current.line == b""


async def test_what_could_not_be_loaded_is_loaded_when_the_store_is_asked_next():
    asked = []

    async def open_tables() -> None:
        asked.append("tables")
        if len(asked) == 1:
            raise StoreUnavailable("it is away for a moment")

    credentials = Credentials(open_tables, "mcp-junction")
    for _ in range(3):
        await credentials.follow({CREDENTIALS_TOPIC: 7})
    assert len(asked) == 2


async def test_what_was_stored_between_loading_and_the_first_look_is_loaded(opener):
    ours, theirs = await opener(), await opener()

    async def open_tables() -> CredentialTables:
        return ours.credentials

    async def save(subject: str) -> None:
        row = CredentialRecord("", "crm", subject, "https://crm.example/mcp", state="signed_in")
        await theirs.credentials.save(row, {"access": f"secret of {subject}"})

    url = "https://crm.example/mcp"
    auth = ServerAuth(type="key", per="agent")
    definition = ServerDefinition("crm", "http", url=url, id="crm", auth=auth)
    credentials = Credentials(open_tables, "mcp-junction")
    await save("agent:ann")
    await credentials.load()
    await save("agent:bob")
    await credentials.follow(await ours.generations())
    found = [source.subject for source in credentials.sources_of(definition)]
    assert found == ["agent:ann", "agent:bob"]
    await credentials.close()
