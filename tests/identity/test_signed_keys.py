"""A row of the database is no right: what somebody can do who has nothing but the database."""

import logging
from hashlib import sha256

import pytest

from mcp_junction.identity.keys import SIGNED_FILE, KeyRing, sign_existing_keys
from mcp_junction.policy.principal import Role
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault

SECRET = "a-secret-of-somebody-elses-own-making"
FORGED = f"jct_forged_{SECRET}"
FORGERY = (
    "INSERT INTO keys (id, role, agent, sha256, created_at, created_by)"
    f" VALUES ('forged', 'admin', 'admin', '{sha256(SECRET.encode()).hexdigest()}', 1.0, 'me')"
)
BEFORE = ("UPDATE keys SET mac = NULL", "DELETE FROM key_state")
"""What makes a store of today one from before keys were signed."""


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


async def ring_of(opener) -> KeyRing:
    """The keys as a process has them that is started now."""
    return await KeyRing.open(await opener())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


async def signed_rows(store) -> list:
    rows = await store.audit.rows(AuditQuery(action="keys.sign"))
    return [row for row in rows if row.kind == "outcome"]


async def test_a_row_that_was_put_into_the_database_is_no_key(opener, dump, caplog):
    ring = await ring_of(opener)
    _, text = await ring.create(Role.VIEWER, "vi", "test")
    await dump.run(FORGERY)
    again = await ring_of(opener)
    assert again.principal(bearer(FORGED)) is None
    assert again.principal(bearer(text)) is not None
    assert [key.id for key in await again.all()] == [text.split("_")[1]]
    assert "carry no valid signature and are ignored: forged" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        "role = 'admin'",
        "agent = 'somebody-else'",
        f"sha256 = '{sha256(SECRET.encode()).hexdigest()}'",
        "created_at = 5.0",
        "created_by = 'somebody'",
        "revoked_by = 'somebody'",
        "mac = NULL",
        "id = 'forged'",
    ],
)
async def test_a_row_that_was_changed_is_no_key_any_more(opener, dump, change):
    ring = await ring_of(opener)
    key, text = await ring.create(Role.VIEWER, "vi", "test")
    await dump.run(f"UPDATE keys SET {change} WHERE id = '{key.id}'")
    again = await ring_of(opener)
    assert not again.has_any
    for shown in (text, text.replace(key.id, "forged"), f"jct_{key.id}_{SECRET}"):
        assert again.principal(bearer(shown)) is None


async def test_a_revocation_is_not_taken_back_by_an_edit(opener, dump):
    ring = await ring_of(opener)
    key, text = await ring.create(Role.AGENT, "bot", "test")
    await ring.revoke(key.id, "test")
    await dump.run("UPDATE keys SET revoked_at = NULL, revoked_by = NULL")
    assert (await ring_of(opener)).principal(bearer(text)) is None


async def test_the_signature_of_one_row_is_none_for_another(opener, dump):
    ring = await ring_of(opener)
    admin, _ = await ring.create(Role.ADMIN, "admin", "test")
    await dump.run(FORGERY)
    await dump.run(
        f"UPDATE keys SET mac = (SELECT mac FROM keys WHERE id = '{admin.id}') WHERE id = 'forged'"
    )
    assert (await ring_of(opener)).principal(bearer(FORGED)) is None


async def test_keys_from_before_are_signed_once_and_that_is_in_the_audit(opener, dump, folder):
    ring = await ring_of(opener)
    key, text = await ring.create(Role.AGENT, "bot", "test")
    for sql in BEFORE:
        await dump.run(sql)
    store = await opener()
    audit = await opener.log(store)
    assert await sign_existing_keys(store, audit, folder) == 1
    assert (await KeyRing.open(store)).principal(bearer(text)) is not None
    await dump.run(FORGERY)
    assert await sign_existing_keys(store, audit, folder) == 0
    assert (await ring_of(opener)).principal(bearer(FORGED)) is None
    await audit.flush()
    (row,) = await signed_rows(store)
    assert (row.actor, row.outcome) == ("local-owner", "ok")
    assert key.id in row.detail


async def test_who_deletes_the_note_in_the_database_gets_nothing_signed(
    opener, dump, folder, caplog
):
    store = await opener()
    audit = await opener.log(store)
    await sign_existing_keys(store, audit, folder)
    ring = await KeyRing.open(store)
    _, text = await ring.create(Role.AGENT, "bot", "test")
    await dump.run("DELETE FROM key_state")
    await dump.run(FORGERY)
    assert await store.keys.unsigned() == ["forged"]
    caplog.set_level(logging.ERROR)
    assert await sign_existing_keys(store, audit, folder) == 0
    again = await ring_of(opener)
    assert again.principal(bearer(FORGED)) is None
    assert again.principal(bearer(text)) is not None
    assert SIGNED_FILE in caplog.text
    await audit.flush()
    assert await signed_rows(store) == []


async def test_without_the_file_too_nothing_is_signed_beside_signed_rows(opener, dump, folder):
    store = await opener()
    audit = await opener.log(store)
    await (await KeyRing.open(store)).create(Role.ADMIN, "admin", "test")
    await dump.run("DELETE FROM key_state")
    await dump.run(FORGERY)
    assert await sign_existing_keys(store, audit, folder) == 0
    again = await ring_of(opener)
    assert again.principal(bearer(FORGED)) is None
    assert again.has_issued_client_keys, "whoever removed the note may have removed keys, too"


async def test_a_new_store_has_nothing_to_sign_and_signs_nothing_later(opener, dump):
    await ring_of(opener)
    await dump.run(FORGERY)
    store = await opener()
    assert await store.keys.unsigned() is None
    assert (await KeyRing.open(store)).principal(bearer(FORGED)) is None


async def test_two_processes_that_start_at_once_sign_once(opener, dump, folder):
    await (await ring_of(opener)).create(Role.AGENT, "bot", "test")
    for sql in BEFORE:
        await dump.run(sql)
    one, two = await opener(), await opener()
    ids = await one.keys.unsigned()
    assert ids == await two.keys.unsigned()
    assert [await one.keys.sign_existing(ids), await two.keys.sign_existing(ids)] == [1, 0]


async def test_keys_are_signed_anew_with_the_vaults_new_key(opener, dump):
    old, new = bytes(range(32)), bytes(range(1, 33))
    ring = await ring_of(opener)
    key, text = await ring.create(Role.ADMIN, "admin", "test")
    revoked, gone = await ring.create(Role.AGENT, "bot", "test")
    await ring.revoke(revoked.id, "test")
    async with await open_store(opener.url, Vault([new, old])) as turning:
        await turning.protected.renew()
        assert (await KeyRing.open(turning)).principal(bearer(text)) is not None
    async with await open_store(opener.url, Vault([new])) as turned:
        ring = await KeyRing.open(turned)
        assert ring.principal(bearer(text)) is not None
        assert ring.principal(bearer(gone)) is None
        assert ring.has_issued_client_keys
        assert {one.id for one in await ring.all()} == {key.id, revoked.id}
    async with await open_store(opener.url, Vault([old])) as behind:
        assert not (await KeyRing.open(behind)).has_any, "it has not the key that signed"


async def test_that_a_key_was_made_once_is_known_for_ever(opener, dump):
    ring = await ring_of(opener)
    assert not ring.has_issued_client_keys
    await ring.create(Role.ADMIN, "admin", "test")
    assert not ring.has_issued_client_keys, "an administrator's is no other's"
    key, _ = await ring.create(Role.VIEWER, "vi", "test")
    await ring.revoke(key.id, "test")
    assert ring.has_issued_client_keys
    await dump.run("DELETE FROM keys WHERE role = 'viewer'")
    assert (await ring_of(opener)).has_issued_client_keys
    await dump.run("UPDATE key_state SET issued = (1 = 0)")
    assert (await ring_of(opener)).has_issued_client_keys, "what was changed is not believed"
    await dump.run("DELETE FROM key_state")
    assert (await ring_of(opener)).has_issued_client_keys, (
        "there are keys, and nothing says whose there were"
    )
