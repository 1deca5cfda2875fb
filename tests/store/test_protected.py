"""ProtectedStore: everything that is sealed or signed is in one list, and is renewed by it."""

import asyncio
import re
import time
from importlib import resources
from pathlib import Path

import pytest

from mcp_junction.policy.grants import Grant
from mcp_junction.policy.tokens import Token
from mcp_junction.resilience.breaker import BreakerState
from mcp_junction.resilience.idempotency import ClaimState
from mcp_junction.store.call_metrics import CallMetricRecord
from mcp_junction.store.credentials import ClientRecord, CredentialRecord, LoginRecord
from mcp_junction.store.database import migrations
from mcp_junction.store.events import DeliveryRecord
from mcp_junction.store.grants import AgentRecord, ApprovalRecord
from mcp_junction.store.keys import RevokedSubject
from mcp_junction.store.records import KeyRecord, ServerRecord
from mcp_junction.store.resilience import CircuitRecord, ClaimRecord, EscalationRecord, WindowRecord
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
CANARY = "canary-5f1d0c"
OPEN_COLUMNS = {
    # What servers say of themselves, and vectors of it.
    ("tools", "definition"), ("tools", "pinned_definition"), ("offers", "definition"),
    ("declared_tools", "definition"), ("skills", "embedding"), ("embeddings", "embedding"),
    ("tool_vectors", "embedding"),
    # The audit: chained by keys of its own, which are kept for it; and its index.
    ("audit", "mac"), ("audit_pages", "mac"), ("audit_pages", "tags"), ("audit_pages", "body"),
    ("audit_segments", "pages"), ("audit_segments", "terms"), ("audit_segments", "correlations"),
    ("audit_terms", "pages"),
}  # fmt: skip
"""Columns of bytes that are neither sealed nor signed with the vault's key."""


def byte_columns() -> set[tuple[str, str]]:
    """Every column of bytes that the migrations have made, by table."""
    found, table = set(), ""
    for migration in migrations():
        for line in migration.sql.splitlines():
            if made := re.match(r"\s*(?:CREATE|ALTER) TABLE (\w+)", line):
                table = made[1]
            if column := re.search(r"(?:ADD COLUMN |^\s+)(\w+) BYTEA", line):
                found.add((table, column[1]))
    return found


@pytest.mark.req("S-10")
async def test_every_column_of_bytes_is_protected_or_known_to_be_open(store):
    declared = {(one.table, name) for one in store.protected.tables for name in one.protected}
    unknown = byte_columns() - OPEN_COLUMNS - declared
    renamed = {(table, name) for table, name in unknown if not await _exists(store, table, name)}
    assert unknown == renamed, "declare it (store/protected.py), or list it as open here"
    assert len(declared) == len([name for one in store.protected.tables for name in one.protected])


async def _exists(store, table: str, column: str) -> bool:
    from mcp_junction.errors import StoreError
    from mcp_junction.store.database import Query

    try:
        await store._database.read(Query(f"SELECT {column} FROM {table} LIMIT 1"), list)
    except StoreError:
        return False
    return True


def test_every_module_that_seals_declares_it():
    folder = Path(str(resources.files("mcp_junction.store")))
    for path in folder.glob("*.py"):
        text = path.read_text("utf-8")
        if ".seal(" in text:
            assert re.search(r"ProtectedRows\(|sealed_rows\(|    protected = ", text), path.name


async def put(table, record) -> None:
    def script():
        yield table.put(record)

    await table._database.write(script())


async def fill(store) -> None:
    """Put at least one row into everything that is protected."""
    now = time.time()
    config = {"command": "x", "env": {"TOKEN": CANARY}}
    health = f"https://h.example/?token={CANARY}"
    server = ServerRecord("s", "s", "STDIO", config, health_check_url=health)
    await store.servers.add(server)
    await store.keys.add(KeyRecord("k", "agent", "a", "ab" * 32, now, "test"))
    grant = Grant("g", "a", "s", "*", granted_at=now)
    await store.policy.grant(grant, AgentRecord("a"), lambda one: token_of(one.id, "t"))
    await store.policy.migrate([], "test", now)
    await store.tool_settings.carry_over("test")
    await store.tool_settings.change("s", "t", {"risk": "high"}, "test")
    claim = ClaimRecord("c", "a", "s", "t", "key", "h", ClaimState.RUNNING, "w", now)
    await store.claims.make(claim)
    await store.claims.settle("c", ClaimState.DONE, CANARY.encode())
    sealed = store.approvals.seal(CANARY.encode(), "p")
    asked = ("p", "bound", "a", "a", "agent", "s", "t", "g", "high", "{}", sealed, None)
    await store.approvals.add(ApprovalRecord(*asked, now, now + 600))
    await put(store.circuits, CircuitRecord("s", "t", BreakerState.OPEN, 5, now, now))
    await put(store.limits, WindowRecord("g", 60.0, {"1": 2}, now + 60))
    metric = CallMetricRecord("s", "t", 60, 0, "w", 0, 0, 1.0, {}, {"1": 1})
    await put(store.call_metrics, metric)
    await put(
        store.escalations,
        EscalationRecord("e", "a", "s", "t", "link", "cut", None, 1, None, 1, now, now),
    )
    await put(store.webhook_deliveries, DeliveryRecord(1, "call.escalated", "s", "{}", now))
    secret = {"access": CANARY}
    await store.credentials.save(CredentialRecord("r", "s", "shared", "https://u.example"), secret)
    client = ClientRecord("https://i.example", "https://r.example", "c", "none", 0.0, b"")
    await store.credentials.put_client(client, secret)
    login = LoginRecord("l", "h", "s", "shared", "open", "", now + 600)
    await store.credentials.begin_login(login, secret)
    await put(store.revoked_subjects, RevokedSubject("https://i.example", "alice", now, "test"))


def token_of(grant_id: str, token_id: str) -> Token:
    return Token(token_id, grant_id, "ab" * 32, time.time(), time.time() + 900)


@pytest.mark.req("S-10", "NFR-SEC1")
async def test_everything_is_renewed_by_a_new_key_and_the_old_is_not_needed(store, opener, dump):
    await fill(store)
    assert CANARY.encode() not in await dump(), "the dump of the database shows no secret"
    before = {one.table: one for one in await store.protected.count()}
    assert [name for name, one in before.items() if not one.seen] == [], "fill everything"
    assert not any(one.stale or one.invalid for one in before.values())
    async with await open_store(opener.url, Vault([NEW, OLD])) as turning:
        counted = await turning.protected.count()
        assert all(one.stale == one.seen and not one.renewed for one in counted)
        renewed = await turning.protected.renew()
        assert all(one.renewed == one.seen and not one.invalid for one in renewed)
        assert not any(one.renewed or one.stale for one in await turning.protected.renew())
    async with await open_store(opener.url, Vault([NEW], [OLD])) as turned:
        after = await turned.protected.count()
        assert not any(one.stale or one.invalid for one in after)
        assert (await turned.servers.get("s")).connection_config["env"] == {"TOKEN": CANARY}
        assert CANARY in (await turned.servers.get("s")).health_check_url
        assert turned.claims.open((await turned.claims.read_all())[0]) == CANARY.encode()
        assert turned.approvals.reveal(await turned.approvals.get("p")) == CANARY.encode()
        found = await turned.credentials.find("s", "shared")
        assert turned.credentials.open(found) == {"access": CANARY}
        assert (await turned.policy.load(time.time()))["a"].tokens
        assert [one.risk for one in await turned.tool_settings.all()] == ["high"]
        assert (await turned.keys.read()).rejected == []
    assert CANARY.encode() not in await dump()
    assert all(one.invalid == one.seen for one in await store.protected.count()), "the old is blind"


@pytest.mark.req("S-10")
async def test_what_is_not_genuine_is_left_and_counted(store, opener, dump):
    await fill(store)
    await dump.run("UPDATE grants SET tool_name = 'x'")
    await dump.run("UPDATE servers SET connection_config = substr(connection_config, 1, 40)")
    async with await open_store(opener.url, Vault([NEW, OLD])) as turning:
        found = {one.table: one for one in await turning.protected.renew()}
        assert (found["grants"].invalid, found["grants"].renewed) == (1, 0)
        assert (found["servers"].invalid, found["servers"].renewed) == (1, 0)
        assert await turning.policy.grants.all() == []
        assert await turning.servers.all() == [], "a row that was edited does not open"


async def test_a_damaged_address_of_a_server_does_not_keep_others_from_being_renewed(
    store, opener, dump
):
    await fill(store)
    await store.servers.add(ServerRecord("other", "other", "STDIO", {"command": "y"}))
    await dump.run("UPDATE servers SET health_check_url = 'sealed:abc' WHERE id = 's'")
    async with await open_store(opener.url, Vault([NEW, OLD])) as turning:
        found = {one.table: one for one in await turning.protected.renew()}
        assert (found["servers"].invalid, found["servers"].renewed) == (1, 1)


@pytest.mark.req("S-10")
async def test_what_others_change_meanwhile_is_not_undone(store, opener):
    """Tokens are used and grants revoked while everything is renewed."""
    now, many = time.time(), 220
    for number in range(many):
        grant = Grant(f"g{number:03}", "a", "*", f"t{number}", granted_at=now)
        await store.policy.grant(
            grant, AgentRecord("a"), lambda one: token_of(one.id, f"t{one.id}")
        )

    async def spend(first: int, other) -> None:
        tokens = other.policy.tokens
        for number in range(first, many, 4):
            assert await tokens._database.write(tokens.spend(f"tg{number:03}", now))
            if number % 2:
                await other.policy.revoke(f"g{number:03}", now)

    async with (
        await open_store(opener.url, Vault([NEW, OLD])) as turning,
        await open_store(opener.url, Vault([NEW, OLD])) as other,
    ):
        spending = asyncio.gather(*(spend(first, other) for first in range(4)))
        while not spending.done():
            await turning.protected.renew()
        await spending
        await turning.protected.renew()
    async with await open_store(opener.url, Vault([NEW])) as turned:
        left = await turned.policy.tokens.read_all()
        assert {one.id for one in left} == {f"tg{n:03}" for n in range(0, many, 2)}
        assert all(one.used_at for one in left)
        assert len(await turned.policy.grants.all()) == many // 2
