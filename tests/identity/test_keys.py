"""The ring of keys, on every backend: who is let in, and when nobody is."""

import asyncio
import itertools

import pytest

from mcp_junction.errors import UsageError
from mcp_junction.identity.keys import BLIND_AFTER, KeyRing
from mcp_junction.policy.principal import Principal, Role


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


def whose(principal: Principal | None) -> tuple[str, Role] | None:
    return None if principal is None else (principal.id, principal.role)


async def test_a_key_speaks_for_its_agent_until_it_is_revoked(store):
    ring = await KeyRing.open(store)
    assert not ring.has_any
    key, text = await ring.create(Role.ORCHESTRATOR, "conductor", "admin")
    assert ring.principal(bearer(text)) == Principal("conductor", Role.ORCHESTRATOR, key.id)
    await ring.revoke(key.id, "admin")
    assert ring.principal(bearer(text)) is None
    assert not ring.has_any
    with pytest.raises(UsageError, match="there is no key 'x'"):
        await ring.revoke("x", "admin")


async def test_another_process_learns_of_a_revocation_when_it_refreshes(opener):
    ours, theirs = [await KeyRing.open(await opener()) for _ in range(2)]
    key, text = await ours.create(Role.AGENT, "bot", "admin")
    before = theirs.generation
    await theirs.refresh()
    assert theirs.generation != before
    assert theirs.principal(bearer(text)) == Principal("bot", Role.AGENT, key.id)
    assert theirs.is_in_force(Principal("bot", Role.AGENT))
    await ours.revoke(key.id, "admin")
    await theirs.refresh()
    assert theirs.principal(bearer(text)) is None


class Looker:
    """A ring beside the one that makes keys, whose time goes on only while it sleeps."""

    def __init__(self, store) -> None:
        self.now = 100.0
        self.reads = []
        self.ring = KeyRing(store, now=lambda: self.now, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def find(self, authorization: bytes) -> Principal | None:
        return await self.ring.find_new(authorization, self._refresh)

    async def _refresh(self) -> None:
        self.reads.append(self.now)
        await self.ring.refresh()


GUESS = bearer("jct_0123456789ab_guessed")


async def test_keys_are_read_again_for_an_unknown_key_but_ten_times_a_second_at_most(opener):
    ours, looker = await KeyRing.open(await opener()), Looker(await opener())
    await looker.ring.refresh()
    assert await looker.find(bearer("something else")) is None
    assert looker.reads == []
    for _ in range(20):
        looker.now += 0.02  # part of the rest is over when the next guess comes
        assert await looker.find(GUESS) is None
    gaps = [later - sooner for sooner, later in itertools.pairwise(looker.reads)]
    assert [round(gap, 6) for gap in gaps] == [0.1] * 19
    looker.reads.clear()
    key, text = await ours.create(Role.AGENT, "bot", "admin")
    fresh = [bearer(text)] * 20  # a client may open several connections at once
    found = await asyncio.gather(*map(looker.find, (GUESS, *fresh)))
    assert found == [None, *[Principal("bot", Role.AGENT, key.id)] * 20]
    assert len(looker.reads) <= 2


async def test_two_keys_made_one_after_the_other_are_both_found_at_once(opener):
    ours, looker = await KeyRing.open(await opener()), Looker(await opener())
    for agent in ("first", "second"):
        key, text = await ours.create(Role.AGENT, agent, "admin")
        assert await looker.find(bearer(text)) == Principal(agent, Role.AGENT, key.id)


async def test_a_key_made_while_keys_are_read_is_found_by_the_next_read(store):
    ours, ring, reads = await KeyRing.open(store), KeyRing(store), []
    await ring.refresh()
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def refresh() -> None:
        await ring.refresh()
        reads.append(1)
        begun.set()
        await goes_on.wait()

    guess = asyncio.create_task(ring.find_new(GUESS, refresh))
    await begun.wait()
    key, text = await ours.create(Role.AGENT, "bot", "admin")
    found = [asyncio.create_task(ring.find_new(bearer(text), refresh)) for _ in range(5)]
    await asyncio.sleep(0)
    goes_on.set()
    assert await asyncio.gather(*found) == [Principal("bot", Role.AGENT, key.id)] * 5
    assert (await guess, len(reads)) == (None, 2)


async def test_a_request_that_is_given_up_while_it_looks_leaves_the_look_to_the_next(store):
    ours, ring = await KeyRing.open(store), KeyRing(store)
    await ring.refresh()
    key, text = await ours.create(Role.AGENT, "bot", "admin")
    given_up = asyncio.create_task(ring.find_new(GUESS, asyncio.Event().wait))
    waiting = asyncio.create_task(ring.find_new(bearer(text), ring.refresh))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await waiting == Principal("bot", Role.AGENT, key.id)


async def test_a_look_for_a_key_keeps_only_a_few_requests_waiting_while_the_store_hangs(store):
    ring, hangs = await KeyRing.open(store), asyncio.Event()
    guesses = [
        asyncio.create_task(ring.find_new(bearer("jct_0123456789ab_guessed"), hangs.wait))
        for _ in range(100)
    ]
    await asyncio.sleep(0)
    assert sum(task.done() for task in guesses) == 68
    hangs.set()
    assert await asyncio.gather(*guesses) == [None] * 100


async def test_without_the_store_keys_are_good_for_a_moment_and_then_nobody_is_let_in(store):
    now = 100.0
    ring = KeyRing(store, now=lambda: now)
    await ring.refresh()
    _, text = await ring.create(Role.AGENT, "bot", "admin")
    await store.close()
    await ring.refresh()
    now += BLIND_AFTER - 1
    await ring.refresh()
    assert ring.principal(bearer(text)) is not None
    now += 1
    assert ring.is_blind
    assert ring.principal(bearer(text)) is None
    assert ring.has_any  # so that the loopback is not thrown open


async def test_a_key_of_the_administrators_own_making_is_taken_and_the_one_before_it_ends(store):
    ring = await KeyRing.open(store)
    first, second = "correct-horse-battery-staple", "another-horse-another-staple"
    await ring.adopt(first, "JUNCTION_ADMIN_KEY")
    await ring.adopt(first, "JUNCTION_ADMIN_KEY")
    assert whose(ring.principal(bearer(first))) == ("admin", Role.ADMIN)
    assert (ring.has_admin, ring.has_issued_client_keys) == (True, False)
    assert first not in repr(await ring.all())
    await ring.adopt(second, "JUNCTION_ADMIN_KEY")
    assert ring.principal(bearer(first)) is None
    assert whose(ring.principal(bearer(second))) == ("admin", Role.ADMIN)
    with pytest.raises(UsageError, match="revoked"):
        await ring.adopt(first, "JUNCTION_ADMIN_KEY")


@pytest.mark.parametrize("weak", ["short", "x" * 23, "with a space in it, but long", "é" * 30])
async def test_a_key_that_can_be_guessed_or_not_be_sent_is_not_taken(opener, weak):
    ring = await KeyRing.open(await opener())
    with pytest.raises(UsageError, match="JUNCTION_ADMIN_KEY must be"):
        await ring.adopt(weak, "JUNCTION_ADMIN_KEY")
    assert not ring.has_any


async def test_an_agents_key_does_not_become_an_administrators(store):
    ring = await KeyRing.open(store)
    _, text = await ring.create(Role.AGENT, "bot", "admin")
    assert ring.has_issued_client_keys
    with pytest.raises(UsageError, match="no administrator's"):
        await ring.adopt(text, "JUNCTION_ADMIN_KEY")


async def test_what_was_opened_with_a_key_is_not_kept_open_by_another_of_the_same_agent(store):
    ring = await KeyRing.open(store)
    (leaked, old), (_, new) = [await ring.create(Role.AGENT, "bot", "admin") for _ in range(2)]
    first, second = ring.principal(bearer(old)), ring.principal(bearer(new))
    assert first is not None
    assert second is not None
    await ring.revoke(leaked.id, "admin")
    assert not ring.is_in_force(first)
    assert ring.is_in_force(second)
    assert ring.is_in_force(Principal("bot", Role.AGENT)), "where it is not known which it was"
