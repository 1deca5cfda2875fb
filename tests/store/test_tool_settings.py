"""Tool settings: signed rows that outlive restarts and renames; older ones are signed once."""

import pytest
from tests.store.records import definition, server

from mcp_junction.errors import NotFound
from mcp_junction.policy.risk import RiskLevel
from mcp_junction.policy.tool_settings import FallbackTarget, ToolSetting
from mcp_junction.registry.tool_settings import CARRIED_FILE, carry_over_tool_settings
from mcp_junction.store import database
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.store import open_store
from mcp_junction.store.tool_settings import DeclaredTool
from mcp_junction.vault.vault import Vault

EVERYTHING = {
    "enabled": False,
    "risk": "high",
    "read_only": False,
    "idempotent": True,
    "timeout_ms": 5,
    "fallbacks": [{"server_id": "x", "tool_name": "b", "arguments": {"q": "/query"}}],
    "versions": ">=1,<2",
}


@pytest.fixture
def has_tables() -> bool:
    return False


@pytest.fixture
async def files(store) -> str:
    return (await store.servers.add(server())).id


async def test_a_setting_is_what_was_set_after_a_restart_and_a_rename(opener, store, files):
    await store.tool_settings.change(files, "a/b", EVERYTHING, "ann")
    await store.servers.change(files, {"name": "renamed"})
    later = await opener()
    (found,) = await later.tool_settings.all()
    (record,) = await later.tool_settings.read_all()
    assert (record.updated_by, record.updated_at > 0) == ("ann", True)
    target = FallbackTarget("x", "b", {"q": "/query"})
    assert found == ToolSetting(files, "a/b", False, "high", False, True, 5, (target,), ">=1,<2")


async def test_what_is_set_to_nothing_is_unset_and_the_last_takes_the_row_along(store, files):
    await store.tool_settings.change(files, "a", {"risk": "high", "enabled": False}, "ann")
    changed = await store.tool_settings.change(files, "a", {"risk": None}, "ann")
    assert (changed.risk, changed.enabled) == (None, False)
    await store.tool_settings.change(files, "a", {"enabled": None}, "ann")
    assert await store.tool_settings.all() == []
    with pytest.raises(NotFound):
        await store.tool_settings.change("nobody", "a", {"enabled": False}, "ann")


async def test_a_removed_server_takes_its_settings_and_declarations_with_it(store, files):
    await store.tool_settings.change(files, "a", {"enabled": False}, "ann")
    await store.declared_tools.replace(files, [DeclaredTool(files, "a", b"{}", "1.0")])
    before = (await store.generations())["tool_settings"]
    await store.servers.remove(files)
    assert await store.tool_settings.all() == await store.declared_tools.all() == []
    assert (await store.generations())["tool_settings"] > before


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE tool_settings SET risk = 'low'",
        "UPDATE tool_settings SET mac = NULL",
        'UPDATE tool_settings SET fallbacks = \'[{"server_id": "x", "tool_name": "y"}]\'',
        "UPDATE tool_settings SET fallbacks = 'nonsense'",
    ],
)
async def test_a_row_that_was_tampered_with_disables_its_tool(store, files, dump, tampering):
    await store.tool_settings.change(files, "a", {"risk": "high"}, "ann")
    await dump.run(tampering)
    unknown = ToolSetting(files, "a", enabled=False, is_unverified=True)
    assert await store.tool_settings.all() == [unknown]
    changed = await store.tool_settings.change(files, "a", {"idempotent": True}, "ann")
    assert changed.risk is None, "nothing is taken over from it"
    still = ToolSetting(files, "a", enabled=False, idempotent=True)
    assert await store.tool_settings.all() == [still], "only who says so enables it again"
    await store.tool_settings.change(files, "a", {"enabled": True, "risk": "high"}, "ann")
    again = ToolSetting(files, "a", enabled=True, risk=RiskLevel.HIGH, idempotent=True)
    assert await store.tool_settings.all() == [again]


async def test_a_row_that_was_moved_disables_the_tool_that_it_was_moved_to(store, files, dump):
    await store.tool_settings.change(files, "a", {"risk": "high"}, "ann")
    await dump.run("UPDATE tool_settings SET tool_name = 'b'")
    unknown = ToolSetting(files, "b", enabled=False, is_unverified=True)
    assert await store.tool_settings.all() == [unknown]
    await store.tool_settings.change(files, "b", {"enabled": None}, "ann")
    assert await store.tool_settings.all() == [], "an operator can drop it, too"


async def test_a_new_key_of_the_vault_signs_them_anew(store_url, store, files):
    await store.tool_settings.change(files, "a", {"risk": "high"}, "ann")
    old, new = bytes(range(32)), bytes(reversed(range(32)))
    async with await open_store(store_url, Vault([new, old])) as both:
        renewed = {table.table: table.renewed for table in await both.protected.renew()}
        assert renewed["tool_settings"] == 1
    async with await open_store(store_url, Vault([new])) as later:
        assert [one.risk for one in await later.tool_settings.all()] == ["high"]


def blob(data: bytes, url: str) -> str:
    return f"X'{data.hex()}'" if url.startswith("sqlite") else f"'\\x{data.hex()}'::bytea"


@pytest.fixture
async def older(store_url, vault, dump, monkeypatch):
    """A store of the version before, with three tools; two of them have settings."""
    known = database.migrations()
    monkeypatch.setattr(database, "migrations", lambda: [one for one in known if one.number < 7])
    await (await open_store(store_url, vault)).close()
    monkeypatch.undo()
    sealed = blob(vault.seal(b"{}", "servers/s/connection_config"), store_url)
    await dump.run(
        "INSERT INTO servers (id, name, description, transport_type, connection_config, enabled,"
        " origin, isolation, pin, trust_annotations, allow_private, allow_http, capabilities,"
        " version, registered_at, updated_at, status, tool_count) VALUES ('s', 'box', '', 'HTTP',"
        f" {sealed}, TRUE, 'api', 'shared', 'warn', FALSE, FALSE, FALSE, 'null', 1, 0, 0,"
        " 'CONNECTED', 3)"
    )
    body = blob(definition("x").definition, store_url)
    for name, enabled, risk, timeout in (
        ("plain", "TRUE", "NULL", "NULL"),
        ("off", "FALSE", "NULL", "NULL"),
        ("slow", "TRUE", "'high'", "70"),
    ):
        await dump.run(
            "INSERT INTO tools (id, server_id, name, position, definition, hash, pinned_hash,"
            " quarantined, enabled, risk, timeout_ms, fallbacks, flags, skill_ids, is_classified,"
            f" first_seen_at, updated_at) VALUES ('{name}', 's', '{name}', 0, {body}, 'h', 'h',"
            f" FALSE, {enabled}, {risk}, {timeout}, '[]', '[]', '[]', FALSE, 0, 0)"
        )
    return store_url


async def test_settings_of_an_older_store_are_signed_once_and_audited(
    older, opener, dump, tmp_path
):
    store = await opener()
    audit = await opener.log(store)
    assert [tool.name for tool in await store.tools.all("s")] == ["off", "plain", "slow"]
    assert await carry_over_tool_settings(store, audit, tmp_path) == 2
    assert await store.tool_settings.all() == [
        ToolSetting("s", "off", enabled=False),
        ToolSetting("s", "slow", risk="high", timeout_ms=70),
    ]
    await audit.flush()
    rows = await store.audit.rows(AuditQuery(action="tool_settings.sign", kind="outcome"))
    assert [row.outcome for row in rows] == ["ok"]
    # What is written there later is not signed, whatever else is removed.
    forged = (
        "INSERT INTO unsigned_tool_settings (server_id, tool_name, risk, fallbacks)"
        " VALUES ('s', 'rm', 'low', '[]')"
    )
    await dump.run(forged)
    assert await carry_over_tool_settings(store, audit, tmp_path) == 0
    await dump.run("DELETE FROM tool_setting_state")
    assert await carry_over_tool_settings(store, audit, tmp_path) == 0, "the data directory knows"
    (tmp_path / CARRIED_FILE).unlink()
    assert await carry_over_tool_settings(store, audit, tmp_path) == 0, "there are signed rows"
    assert {one.tool_name for one in await store.tool_settings.all()} == {"off", "slow"}
