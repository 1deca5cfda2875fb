"""Agents, grants and tokens in the store: what a change does, and what a row without a MAC is."""

import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from mcp_junction.errors import InvalidChange, NotFound, Problem, ProblemCode
from mcp_junction.policy.grants import (
    ANY,
    KINDS,
    CallLimit,
    Grant,
    GrantSource,
    bind,
    migrated_grant,
)
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.tokens import Token, TokenMode
from mcp_junction.store.grants import AgentRecord
from mcp_junction.store.policy import AgentPolicy
from mcp_junction.store.records import KeyRecord, ServerRecord
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault

NOW = 1_000.0
SPENDER = Path(__file__).parent / "spender.py"
ADMIN = Principal("ann", Role.ADMIN)


def grant_of(agent: str = "a1", pattern: str = "read_*", **more) -> Grant:
    given = {"id": f"{agent}-{pattern}", "server_id": ANY, "granted_at": NOW, "granted_by": "ann"}
    return Grant(agent_id=agent, tool_name=pattern, **{**given, **more})


class Tokens:
    """Makes tokens with ids in order: t1, t2 …"""

    def __init__(self, prefix: str = "t", expires: float = 2_000.0) -> None:
        self._prefix = prefix
        self._expires = expires
        self.made = 0

    def __call__(self, grant: Grant) -> Token | None:
        if grant.token_mode is TokenMode.NONE:
            return None
        self.made += 1
        return Token(f"{self._prefix}{self.made}", "", "ab" * 32, NOW, self._expires)


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


async def give(store, grant: Grant, tokens) -> Grant:
    return (await store.policy.grant(grant, AgentRecord(grant.agent_id), tokens)).grant


async def policy_of(store, agent: str = "a1"):
    return (await store.policy.load_agents([agent], NOW))[agent]


async def spend(store, token: str, now: float = NOW) -> bool:
    return await store._database.write(store.policy.tokens.spend(token, now))


async def test_a_grant_is_read_as_it_was_given(store, tokens):
    wanted = grant_of(
        kinds=KINDS,
        limits=CallLimit(100, 3600),
        token_mode=TokenMode.SINGLE_USE,
        token_ttl=60,
        expires_at=5_000,
        note="for the nightly run",
        source=GrantSource.BOUND,
    )
    await give(store, wanted, tokens)
    (found,) = (await policy_of(store)).grants
    fields = Grant.__struct_fields__
    assert [getattr(found, f) for f in fields] == [getattr(wanted, f) for f in fields]
    assert await store.policy.grants.read_first("WHERE id = ?", wanted.id) == found
    assert await store.policy.grants.all() == [found]
    (token,) = (await policy_of(store)).tokens
    assert (token.id, token.grant_id, token.is_live(NOW)) == ("t1", wanted.id, True)


async def test_a_grant_makes_its_agent_once(store, tokens):
    await give(store, grant_of(), tokens)
    agent = AgentRecord("a1", "builder", created_at=NOW, created_by="ann")
    assert (await store.policy.add_agent(agent, NOW)).agent_type == ""
    assert [one.agent_id for one in await store.policy.agents.all()] == ["a1"]
    assert await store.policy.agents.find("a2") is None


async def test_the_same_grant_again_has_new_terms_and_a_new_token(store, tokens):
    first = await give(store, grant_of(), tokens)
    again = await give(store, grant_of(id="other", note="again"), tokens)
    assert (again.id, again.version, again.note) == (first.id, 2, "again")
    found = await policy_of(store)
    assert [g.id for g in found.grants] == [first.id]
    assert [t.id for t in found.tokens] == ["t2"]
    other = await give(store, grant_of(id="prompts", kinds=("prompts",)), tokens)
    assert (other.id, other.version) == ("prompts", 1)


async def test_a_revoked_grant_is_gone_with_its_tokens(store, tokens):
    grant = await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    kept = await give(store, grant_of(pattern="list"), tokens)
    assert (await store.policy.revoke(grant.id, NOW)).id == grant.id
    found = await policy_of(store)
    assert [g.id for g in found.grants] == [kept.id]
    assert [t.grant_id for t in found.tokens] == [kept.id]
    assert not await spend(store, "t1")
    for change in (
        store.policy.revoke(grant.id, NOW),
        store.policy.renew_token(grant.id, NOW, tokens),
        store.policy.revoke_tokens(grant.id, NOW),
    ):
        with pytest.raises(NotFound):
            await change


async def test_a_renewed_token_replaces_the_one_before(store, tokens):
    grant = await give(store, grant_of(), tokens)
    renewed = await store.policy.renew_token(grant.id, NOW, tokens)
    assert renewed.token is not None
    assert [t.id for t in (await policy_of(store)).tokens] == ["t2"]
    assert (await store.policy.revoke_tokens(grant.id, NOW))[1] == 1
    assert (await policy_of(store)).tokens == []


async def test_a_grant_for_a_server_that_is_not_there_is_none(store, tokens):
    with pytest.raises(NotFound):
        await give(store, grant_of(server_id="nobody"), tokens)
    assert await store.policy.grants.all() == []
    assert await store.policy.agents.all() == []


async def test_a_removed_server_takes_its_grants_along(store, tokens):
    server = await store.servers.add(ServerRecord("s1", "files", "STDIO", {"command": "x"}))
    mine = await give(store, grant_of(server_id=server.id), tokens)
    kept = await give(store, grant_of("a2"), tokens)
    await store.servers.change(server.id, {"name": "documents"})
    assert await store.policy.grants.read_first("WHERE id = ?", mine.id) is not None
    generation = (await store.generations())["policy"]
    await store.servers.remove(server.id)
    assert [g.id for g in await store.policy.grants.all()] == [kept.id]
    assert (await store.policy.changed_since(generation)).keys() == {"a1"}
    assert not await spend(store, "t1")


async def test_binding_gives_what_is_declared_and_takes_what_was_bound_before(store, tokens):
    servers = {"s1": "s1", "files": "s1"}
    await store.servers.add(ServerRecord("s1", "files", "STDIO", {"command": "x"}))
    await give(store, grant_of(pattern="by-hand"), tokens)

    async def declare(*names):
        def work_out(existing):
            given = {"by": ADMIN, "now": NOW, "new_id": lambda: uuid4().hex}
            return bind("a1", names, existing, servers, **given)

        agent = AgentRecord("a1", "builder", tuple(names), NOW, "ann")
        return await store.policy.bind(agent, NOW, work_out, tokens)

    await declare("files:read", "files:list")
    agent, binding, given = await declare("files:list", "files:write")
    assert [g.tool_name for g in binding.removed] == ["read"]
    assert sorted(one.grant.tool_name for one in given) == ["list", "write"]
    found = {g.tool_name: g.version for g in (await policy_of(store)).grants}
    assert found == {"by-hand": 1, "list": 2, "write": 1}
    assert (agent.agent_type, agent.declared_tools) == ("builder", ("files:list", "files:write"))
    with pytest.raises(InvalidChange):
        await declare("nowhere:read")
    assert {g.tool_name for g in (await policy_of(store)).grants} == set(found)
    assert (await store.policy.agents.find("a1")).declared_tools == agent.declared_tools


async def test_problems_of_a_binding_leave_everything_as_it_was(store, tokens):
    from mcp_junction.policy.grants import Binding

    wrong = Binding(problems=(Problem(ProblemCode.INVALID_SCHEMA, "declared_tools[0]", "is not"),))
    with pytest.raises(InvalidChange):
        await store.policy.bind(AgentRecord("a1"), NOW, lambda _: wrong, tokens)
    assert await store.policy.agents.all() == []


async def test_a_removed_agent_leaves_nothing(store, tokens):
    await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    await give(store, grant_of("a2"), tokens)
    for key, role in (("k1", "agent"), ("k2", "agent"), ("k3", "orchestrator")):
        await store.keys.add(KeyRecord(key, role, "a1", "cd" * 32, NOW, "ann"))
    generation = (await store.generations())["keys"]
    removed = await store.policy.remove_agent("a1", NOW, "ann")
    assert sorted(removed.keys) == ["k1", "k2"]
    assert len(removed.grants) == 1
    assert await policy_of(store) == AgentPolicy([], [])
    assert await store.policy.agents.find("a1") is None
    assert {k.id for k in await store.keys.all() if k.revoked_at is None} == {"k3"}
    assert (await store.generations())["keys"] > generation
    assert len((await policy_of(store, "a2")).grants) == 1
    with pytest.raises(NotFound):
        await store.policy.remove_agent("a1", NOW, "ann")


async def test_only_the_agents_that_changed_are_found(store, tokens):
    assert await store.policy.changed_since(0) == {}
    for agent in ("a1", "a2", "a3"):
        await give(store, grant_of(agent), tokens)
    generation = (await store.generations())["policy"]
    assert await store.policy.changed_since(generation) == {}
    await store.policy.revoke("a2-read_*", NOW)
    await store.policy.remove_agent("a3", NOW, "ann")
    changed = await store.policy.changed_since(generation)
    assert changed.keys() == {"a2", "a3"}
    assert max(changed.values()) == (await store.generations())["policy"]
    found = await store.policy.load_agents(changed, NOW)
    assert found == {"a2": AgentPolicy([], []), "a3": AgentPolicy([], [])}
    assert (await store.policy.load(NOW)).keys() == {"a1"}


# -- tokens


async def test_a_token_is_spent_once(store, tokens):
    await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    assert [await spend(store, "t1"), await spend(store, "t1")] == [True, False]
    (token,) = (await policy_of(store)).tokens
    assert token.used_at == NOW
    assert not await spend(store, "nobody")


async def test_an_expired_or_revoked_token_is_not_spent(store, tokens):
    grant = await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    assert not await spend(store, "t1", 2_000.0)
    await store.policy.revoke_tokens(grant.id, NOW)
    assert not await spend(store, "t1")


async def test_a_used_token_is_known_for_a_day_and_others_until_they_expire(store, tokens):
    grant = await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    await spend(store, "t1")
    await store.policy.renew_token(grant.id, NOW, tokens)

    async def known(now):
        found = await store.policy.load_agents(["a1"], now)
        assert found["a1"].tokens == (await store.policy.load(now))["a1"].tokens
        return {token.id for token in found["a1"].tokens}

    assert await known(NOW + 1) == {"t1", "t2"}
    assert await known(3_000.0) == {"t1"}
    assert await known(NOW + 86_401) == set()


async def test_of_many_callers_one_has_the_token(store, tokens):
    await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    won = await asyncio.gather(*(spend(store, "t1") for _ in range(50)))
    assert sum(won) == 1


async def test_of_many_processes_one_has_each_token(store, store_url, vault, tokens):
    grants = [
        await give(store, grant_of(pattern=f"p{n}", token_mode=TokenMode.SINGLE_USE), tokens)
        for n in range(20)
    ]
    wanted = [f"t{n + 1}" for n in range(len(grants))]
    count = 2 if store_url.startswith("sqlite") else 3
    pipe = asyncio.subprocess.PIPE
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, SPENDER, store_url, bytes(range(32)).hex(), *wanted,
            stdin=pipe, stdout=pipe,
        )
        for _ in range(count)
    ]  # fmt: skip
    async with asyncio.timeout(60):
        for racer in racers:
            assert await racer.stdout.readline() == b"ready\n"
        for racer in racers:
            racer.stdin.write(b"\n")
        won = [json.loads(await racer.stdout.readline()) for racer in racers]
        assert [await racer.wait() for racer in racers] == [0] * count
    assert sorted(token for some in won for token in some) == sorted(wanted)


async def test_two_processes_that_give_the_same_grant_give_one(opener, tokens):
    stores = [await opener() for _ in range(2)]
    wanted = [grant_of(id=f"g{n}") for n in range(10)]
    done = await asyncio.gather(
        *(give(stores[n % 2], grant, tokens) for n, grant in enumerate(wanted))
    )
    assert len({grant.id for grant in done}) == 1
    assert sorted(grant.version for grant in done) == list(range(1, 11))


# -- a row is not a right


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE grants SET tool_name = '*'",
        "UPDATE grants SET agent_id = 'a2'",
        "UPDATE grants SET expires_at = NULL",
        "UPDATE grants SET token_mode = 'none'",
        'UPDATE grants SET kinds = \'["tools","prompts"]\'',
        "UPDATE grants SET limits = NULL",
        "UPDATE grants SET server_id = 's2'",
    ],
)
async def test_a_grant_that_was_tampered_with_is_none(store, tokens, dump, change, caplog):
    limits = CallLimit(1, 60.0)
    await give(store, grant_of(expires_at=5_000.0, limits=limits, server_id=ANY), tokens)
    await dump.run(change)
    assert await store.policy.load(NOW) == {}
    assert await store.policy.grants.read_first("WHERE id = ?", "a1-read_*") is None
    assert "carry no valid signature" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tokens SET expires_at = 9000000000.0",
        "UPDATE tokens SET used_at = NULL",
        f"UPDATE tokens SET sha256 = '{'ef' * 32}'",
        "UPDATE tokens SET grant_id = 'a1-other'",
    ],
)
async def test_a_token_that_was_tampered_with_is_none(store, tokens, dump, change):
    await give(store, grant_of(token_mode=TokenMode.SINGLE_USE), tokens)
    await give(store, grant_of(pattern="other", token_mode=TokenMode.SINGLE_USE), tokens)
    await spend(store, "t1")
    await dump.run(f"{change} WHERE id = 't1'")
    assert [token.id for token in (await policy_of(store)).tokens] == ["t2"]
    assert not await spend(store, "t1")


async def test_rows_put_into_the_database_are_nothing_and_in_nobodys_way(store, tokens, dump):
    await dump.run(
        "INSERT INTO grants VALUES ('forged', 'a1', '*', '*', '[\"tools\"]', '[\"invoke\"]', '',"
        " 'null', 'none', 900.0, NULL, 1.0, 'me', '', 'granted', 1, '\\x00')"
    )
    await dump.run("INSERT INTO agents VALUES ('a9', '', '[]', 1.0, 'me', '\\x00')")
    assert await store.policy.load(NOW) == {}
    assert await store.policy.agents.all() == []
    grant = await give(store, grant_of(pattern="*"), tokens)
    assert [g.id for g in await store.policy.grants.all()] == [grant.id]
    made = await store.policy.add_agent(AgentRecord("a9", "real"), NOW)
    assert (await store.policy.agents.find("a9")).agent_type == made.agent_type == "real"


async def test_a_mac_of_one_table_is_none_in_another(store, tokens):
    await give(store, grant_of(), tokens)
    grant = await store.policy.grants.read_first("WHERE id = ?", "a1-read_*")
    signed = store.policy.tokens.sign(store.policy.tokens._table.record(
        ["x", grant.id, "ab" * 32, 1.0, 2.0, None, None, None]
    ))  # fmt: skip
    assert not store.policy.grants.is_signed(msgspec.structs.replace(grant, mac=signed.mac))


async def test_another_key_of_the_vault_signs_everything_anew(store, store_url, tokens):
    await give(store, grant_of(), tokens)
    await store.policy.migrate([], "test", NOW)
    old, new = bytes(range(32)), bytes(range(32, 64))
    async with await open_store(store_url, Vault([new, old])) as both:
        assert sum(table.renewed for table in await both.protected.renew()) == 4
        assert sum(table.renewed for table in await both.protected.renew()) == 0
    async with await open_store(store_url, Vault([new])) as after:
        found = (await after.policy.load(NOW))["a1"]
        assert (len(found.grants), len(found.tokens)) == (1, 1)
        assert await after.policy.agents.find("a1") is not None
    assert await store.policy.load(NOW) == {}  # the old key alone reads nothing of it


# -- once, and at last


async def test_agents_from_before_are_given_their_grants_once(store, tokens):
    assert not await store.policy.is_migrated()
    grants = [migrated_grant(f"m-{agent}", agent, NOW) for agent in ("a1", "a2")]
    assert await store.policy.migrate(grants, "upgrade", NOW) == 2
    assert await store.policy.is_migrated()
    assert await store.policy.migrate(grants, "upgrade", NOW) == 0
    await store.policy.revoke("m-a1", NOW)
    assert await store.policy.migrate(grants, "upgrade", NOW) == 0
    assert (await store.policy.load(NOW)).keys() == {"a2"}
    assert [agent.agent_id for agent in await store.policy.agents.all()] == ["a1", "a2"]


async def test_who_removes_the_record_of_it_gets_nothing_again(store, tokens, dump):
    await store.policy.migrate([migrated_grant("m1", "a1", NOW)], "upgrade", NOW)
    await dump.run("DELETE FROM policy_state")
    assert not await store.policy.is_migrated()
    again = [migrated_grant("m2", "a2", NOW)]
    assert await store.policy.migrate(again, "upgrade", NOW) == 0
    assert (await store.policy.load(NOW)).keys() == {"a1"}


async def test_what_expired_long_ago_is_removed(store):
    await give(store, grant_of("a1", expires_at=1_500.0), Tokens("x", expires=1_200.0))
    await give(store, grant_of("a2"), Tokens("y", expires=1_200.0))
    await give(store, grant_of("a3", expires_at=9_000.0), Tokens("z", expires=8_000.0))
    assert await store.policy.retire(1_100.0) == 0
    generation = (await store.generations())["policy"]
    assert await store.policy.retire(2_000.0) == 3
    found = await store.policy.load(NOW)
    assert found.keys() == {"a2", "a3"}
    assert [len(found[agent].tokens) for agent in ("a2", "a3")] == [0, 1]
    assert (await store.policy.changed_since(generation)).keys() == {"a1"}
