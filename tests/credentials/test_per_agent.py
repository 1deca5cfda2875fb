"""Two agents, two accounts: nobody ever calls with another's token."""

import asyncio
import random

import pytest
from tests.credentials.world import entry, running, text_of
from tests.fakes.issuer import FakeIssuer

from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import DENIED, RATE_LIMITED, SIGN_IN_NEEDED

pytestmark = pytest.mark.timeout(120)
ANN, BOB = Principal("ann", Role.AGENT), Principal("bob", Role.AGENT)
CONDUCTOR = Principal("conductor", Role.ORCHESTRATOR)
"""Calls on behalf of both, by turns, in the same sessions."""


async def check(issuer, store, calls):
    async with running(store, {"crm": entry(issuer, type="oauth", per="agent")}) as world:
        await world.settled()
        await world.sign_in()  # the operator's, for the lists
        await world.connected()
        callers = {}
        for agent in (ANN, BOB):
            callers[agent.id] = [world.session_of(agent), world.stateless_of(agent)]
            for caller in callers[agent.id]:
                refused = await world.call(caller=caller)
                assert refused.code == SIGN_IN_NEEDED
                assert f"agent={agent.id}" in refused.message
            issuer.person = f"account of {agent.id}"
            await world.sign_in(world.source(principal=agent))
        conductors = [world.session_of(CONDUCTOR), world.stateless_of(CONDUCTOR)]
        for caller in conductors:
            assert (await world.call(caller=caller)).code == DENIED, "itself it is nobody"
        for caller in callers["ann"]:
            assert (await world.call(caller=caller, agent="bob")).code == DENIED
        assert issuer.count("call") == 0
        chance = random.Random(7)
        gate = asyncio.Semaphore(32)

        async def one(nonce):
            name = chance.choice(("ann", "bob"))
            caller = chance.choice([*callers[name], *callers[name], *conductors])
            agent = name if caller in conductors else None
            async with gate:
                outcome = await world.call(caller=caller, agent=agent, nonce=name)
                assert text_of(outcome) == f"account of {name}"
            if not nonce % 500:
                issuer.revoke_access()

        await asyncio.gather(*(one(nonce) for nonce in range(calls)))
        assert text_of(await world.call()) == "alice"
    used = {}
    for kind, what in issuer.ledger:
        if kind == "call" and what[1] is not None:
            account, nonce, token = what
            assert account == f"account of {nonce}"
            used.setdefault(token, set()).add(nonce)
    assert all(len(names) == 1 for names in used.values())
    assert sum(kind == "call" for kind, _ in issuer.ledger) == calls + 1
    assert issuer.count("reuse") == 0


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_each_agent_calls_with_its_own_token_each_time(era, store):
    async with FakeIssuer(era=era) as issuer:
        await check(issuer, store, 600)


@pytest.mark.soak
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_ten_thousand_interleaved_calls_never_mix_tokens(era, store):
    async with FakeIssuer(era=era) as issuer:
        await check(issuer, store, 10_000)


async def test_a_call_for_which_there_is_no_link_of_its_own_takes_no_other(store, monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.extra_links.MAX_POOLED", 0)
    async with FakeIssuer(era="2025-11-25") as issuer:
        per_agent = entry(issuer, type="oauth", per="agent")
        async with running(store, {"crm": per_agent}) as world:
            await world.settled()
            await world.sign_in()
            await world.connected()
            await world.sign_in(world.source(principal=ANN))
            refused = await world.call(caller=world.stateless_of(ANN))
            assert refused.code == RATE_LIMITED
            assert issuer.count("call") == 0, "not on the operator's session"


async def test_another_address_unbinds_a_sign_in(store):
    async with FakeIssuer() as issuer, FakeIssuer() as other:
        async with running(store, {"crm": entry(issuer)}) as world:
            await world.settled()
            await world.sign_in()
            definition = world.junction.servers["crm"].definition
            moved = definition._replace(url=other.url, id="same")
            source = world.credentials.source(moved)
            assert source.current.line == b""
        async with running(store, {"crm": entry(other)}) as world:
            await world.settled()
        assert {what for kind, what in other.ledger if kind == "401"} == {""}
