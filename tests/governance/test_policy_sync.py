"""The policy in memory follows the store: at once here, soon elsewhere, and never for too long."""

import asyncio
import time
from contextlib import suppress

import pytest
from tests.store.test_policy import Tokens, give, grant_of

from mcp_junction.errors import NotFound, StoreUnavailable
from mcp_junction.governance.policy_sync import BLIND_AFTER, PolicySync
from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.live_policy import STORE, LivePolicy
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.store.grants import AgentRecord

SERVERS = {"files": "s1"}
READ = CallTarget("s1", "read_file")


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


class Process:
    """The policy of one process."""

    def __init__(self, store) -> None:
        self.store = store
        self.clock = Clock()
        self.wall = time.time()
        self.policy = LivePolicy(SERVERS)
        self.sync = PolicySync(store, self.policy, self.clock, lambda: self.wall)
        self.changes = []
        self.sync.sinks.append(self.changes.extend)

    async def poll(self) -> None:
        await self.sync.follow(await self.store.generations(), self.clock.now())

    def allows(self, agent: str = "a1", target: CallTarget = READ) -> bool:
        return self.policy.decide(Principal(agent, Role.AGENT), None, target, self.wall).allowed

    def changed(self) -> list[str]:
        found = [change.agent_id for change in self.changes]
        self.changes.clear()
        return found


@pytest.fixture
async def processes(opener):
    """Two processes on one store."""
    made = [Process(await opener()) for _ in range(2)]
    for process in made:
        await process.sync.open()
    return made


async def test_a_change_holds_at_once_here_and_elsewhere_with_the_next_poll(processes):
    here, there = processes
    await give(here.store, grant_of(), Tokens())
    await here.sync.refresh("a1")
    assert (here.allows(), there.allows()) == (True, False)
    await there.poll()
    assert there.allows()
    assert there.changed() == ["a1"]
    await here.store.policy.revoke("a1-read_*", 1.0)
    await here.sync.refresh("a1")
    assert (here.allows(), there.allows()) == (False, True)
    await there.poll()
    assert not there.allows()
    assert there.changed() == ["a1"]


async def test_only_agents_that_changed_are_read_and_only_they_are_touched(processes, monkeypatch):
    here, there = processes
    for number in range(5):
        await give(here.store, grant_of(f"a{number}"), Tokens(f"t{number}-"))
    await there.poll()
    there.changed()
    read = []
    load = there.store.policy.load_agents

    async def note(agents, now):
        read.append(set(agents))
        return await load(agents, now)

    monkeypatch.setattr(there.store.policy, "load_agents", note)
    before = [there.policy.grants(Principal(f"a{n}", Role.AGENT)) for n in range(5)]
    await give(here.store, grant_of("a3", "other"), Tokens("more-"))
    await there.poll()
    await there.poll()
    assert read == [{"a3"}]
    assert there.changed() == ["a3"]
    after = [there.policy.grants(Principal(f"a{n}", Role.AGENT)) for n in range(5)]
    assert [one is other for one, other in zip(before, after, strict=True)] == [
        True, True, True, False, True,
    ]  # fmt: skip


async def test_what_was_taken_over_already_changes_nothing_again(processes):
    here, _ = processes
    await give(here.store, grant_of(), Tokens())
    await here.sync.refresh("a1")
    grants = here.policy.grants(Principal("a1", Role.AGENT))
    here.changed()
    await here.poll()
    assert here.changed() == []
    assert here.policy.grants(Principal("a1", Role.AGENT)) is grants


async def test_a_store_of_before_is_read_as_a_whole(processes, dump):
    here, there = processes
    await give(here.store, grant_of(), Tokens())
    await there.poll()
    await dump.run("UPDATE counters SET value = value + 5 WHERE topic = 'policy'")
    await dump.run("DELETE FROM policy_changes")
    await dump.run("DELETE FROM grants")
    await there.poll()
    assert not there.allows()
    await give(here.store, grant_of(), Tokens("again"))
    await there.poll()
    assert there.allows()
    await dump.run("UPDATE counters SET value = 1 WHERE topic = 'policy'")
    await dump.run("DELETE FROM grants")
    await there.poll()
    assert not there.allows()


@pytest.mark.req("R-REVOKE")
async def test_after_some_seconds_without_the_store_nothing_passes(processes):
    here, _ = processes
    await give(here.store, grant_of(), Tokens())
    await here.poll()
    here.sync.keep_time()
    assert here.allows()
    here.clock.time += BLIND_AFTER
    assert here.sync.is_blind
    here.sync.keep_time()
    denied = here.policy.decide(Principal("a1", Role.AGENT), None, READ, here.wall)
    assert (denied.allowed, denied.rule) == (False, STORE)
    assert here.policy.grants(Principal("a1", Role.AGENT)).of("tools", "files") is None
    admin = Principal("root", Role.ADMIN)
    assert here.policy.decide(admin, None, READ, here.wall).allowed
    assert not here.policy.decide(admin, "a1", READ, here.wall).allowed
    await here.poll()
    assert not here.sync.is_blind
    assert here.allows()


async def test_a_poll_that_fails_takes_nothing_over_and_does_not_count(processes, monkeypatch):
    here, there = processes
    await give(here.store, grant_of(), Tokens())

    async def away(*_):
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(there.store.policy, "changed_since", away)
        there.clock.time += BLIND_AFTER
        await there.poll()
        assert there.sync.is_blind
    await there.poll()
    assert not there.sync.is_blind
    assert there.allows()


async def test_a_change_that_cannot_be_read_leaves_its_agent_with_nothing(processes, monkeypatch):
    here, _ = processes
    await give(here.store, grant_of(), Tokens())
    await here.poll()
    assert here.allows()

    async def away(*_):
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(here.store.policy, "load_agents", away)
        await here.store.policy.revoke("a1-read_*", 1.0)
        await here.sync.refresh("a1")
    assert not here.allows()


async def test_grants_that_expire_are_let_go_of_in_time(processes):
    here, _ = processes
    now = here.wall
    await give(here.store, grant_of(granted_at=now, expires_at=now + 60), Tokens())
    await give(here.store, grant_of("a2", granted_at=now), Tokens("u"))
    await here.poll()
    here.changed()
    here.sync.keep_time()
    assert here.changed() == []
    assert here.policy.next_expiry == now + 60
    here.wall = now + 60
    here.sync.keep_time()
    assert here.changed() == ["a1"]
    assert here.policy.grants(Principal("a1", Role.AGENT)).of("tools", "files") is None
    here.sync.keep_time()
    assert here.changed() == []
    assert here.policy.next_expiry is None


async def test_many_changes_at_once_end_as_the_store_has_them(processes):
    here, there = processes

    async def change(process, number: int) -> None:
        given = grant_of(pattern=f"read_{number % 3}")
        tables = process.store.policy
        made = (await tables.grant(given, AgentRecord("a1"), lambda _: None)).grant
        await process.sync.refresh("a1")
        if number % 2:
            with suppress(NotFound):  # another was first
                await tables.revoke(made.id, 1.0)
            await process.sync.refresh("a1")

    await asyncio.gather(*(change((here, there)[n % 2], n) for n in range(20)))
    for process in processes:
        await process.poll()
    stored = {grant.id for grant in await here.store.policy.grants.all()}
    for process in processes:
        assert {grant.id for grant in process.policy.of("a1").grants} == stored


async def test_a_sink_that_fails_keeps_no_change_from_holding(processes, caplog):
    here, _ = processes

    def broken(_):
        raise RuntimeError("no idea")

    here.sync.sinks.insert(0, broken)
    await give(here.store, grant_of(), Tokens())
    await here.poll()
    assert here.allows()
    assert here.changed() == ["a1"]
    assert "a sink of policy changes failed" in caplog.text
