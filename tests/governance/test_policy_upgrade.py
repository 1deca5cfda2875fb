"""The upgrade that brings grants: what agents could do before, they can do; nobody else can."""

import pytest

from mcp_junction.governance.policy_admin import MIGRATED_FILE, migrate_agents
from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.grants import ANY, KINDS, GrantSource
from mcp_junction.policy.principal import Role
from mcp_junction.policy.tokens import TokenMode
from mcp_junction.store.audit_records import AuditQuery


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


async def keys_of(store, *agents: str, role: Role = Role.AGENT):
    ring = await KeyRing.open(store)
    return [(await ring.create(role, agent, "test"))[0] for agent in agents]


async def granted(store) -> dict[str, list]:
    return {agent: found.grants for agent, found in (await store.policy.load(0.0)).items()}


async def test_every_agent_with_a_live_key_is_granted_everything_once(store, opener, folder):
    _, gone, _ = await keys_of(store, "one", "gone", "two")
    await (await KeyRing.open(store)).revoke(gone.id, "test")
    await keys_of(store, "boss", role=Role.ORCHESTRATOR)
    await keys_of(store, "eve", role=Role.VIEWER)
    log = await opener.log(store)
    assert await migrate_agents(store, log, folder) == ["one", "two"]
    found = await granted(store)
    assert found.keys() == {"one", "two"}
    (grant,) = found["one"]
    assert (grant.server_id, grant.tool_name, grant.kinds) == (ANY, ANY, KINDS)
    assert (grant.source, grant.token_mode) == (GrantSource.MIGRATED, TokenMode.NONE)
    assert [agent.agent_id for agent in await store.policy.agents.all()] == ["one", "two"]
    await log.flush()
    rows = await store.audit.rows(AuditQuery(action="policy.migrate"))
    assert [(row.kind, row.outcome) for row in rows[::-1]] == [("intent", None), ("outcome", "ok")]
    await keys_of(store, "later")
    assert await migrate_agents(store, log, folder) == []
    await store.policy.revoke(grant.id, 1.0)
    assert await migrate_agents(store, log, folder) == []
    assert (await granted(store)).keys() == {"two"}


async def test_agents_of_a_new_store_begin_with_nothing(store, opener, folder):
    log = await opener.log(store)
    assert await migrate_agents(store, log, folder) == []
    await keys_of(store, "first")
    assert await migrate_agents(store, log, folder) == []
    assert await granted(store) == {}


async def test_keys_that_share_the_default_id_are_named_in_a_warning(store, opener, folder, caplog):
    await keys_of(store, "agent", "agent", "bot", "bot")
    await migrate_agents(store, await opener.log(store), folder)
    assert "2 agents that had a key were granted everything, as before: agent, bot" in caplog.text
    assert "2 keys share the agent id 'agent'" in caplog.text
    assert "share the agent id 'bot'" not in caplog.text


async def test_who_tampers_with_the_store_gets_nothing_by_it(store, opener, folder, dump, caplog):
    log = await opener.log(store)
    await migrate_agents(store, log, folder)
    await keys_of(store, "later")
    for table in ("policy_state", "grants", "agents"):
        await dump.run(f"DELETE FROM {table}")
    assert await migrate_agents(store, log, folder) == []
    assert await granted(store) == {}
    assert "none are given again" in caplog.text
    (folder / MIGRATED_FILE).unlink()
    await dump.run("INSERT INTO policy_state VALUES (1, 1.0, '\\x00')")
    assert await migrate_agents(store, log, folder) == []
    assert await granted(store) == {}


async def test_of_two_processes_that_start_at_one_time_one_does_it(opener, folder, tmp_path):
    one, two = await opener(), await opener()
    await keys_of(one, "bot")
    done = [
        await migrate_agents(one, await opener.log(one), folder),
        await migrate_agents(two, await opener.log(two), tmp_path / "another"),
    ]
    assert done == [["bot"], []]
    assert len((await granted(one))["bot"]) == 1
