"""S-15: faults at every statement, on both stores. It fails closed, and comes back by itself."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle

import asyncpg
import pytest
from tests.fakes.statement_faults import StatementFaults
from tests.plugin_store import Opener
from tests.store.records import definition, server

from mcp_junction.audit.verify import verify
from mcp_junction.errors import MissingKey, StoreError, StoreUnavailable, UnreadableRow
from mcp_junction.identity.keys import BLIND_AFTER, KeyRing
from mcp_junction.policy.principal import Role
from mcp_junction.registry.server_lifecycle import HistoryWriter
from mcp_junction.resilience.breaker import BreakerRow, BreakerState
from mcp_junction.resilience.idempotency import ClaimState
from mcp_junction.store.audit import IntentCheck
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.database import PATIENCE, Query
from mcp_junction.store.records import Classified, HistoryEvent, NewEvent, SkillRecord
from mcp_junction.store.resilience import ClaimRecord, EscalationQuery, EscalationRecord
from mcp_junction.store.store import Store, open_store
from mcp_junction.store.table import UNREADABLE
from mcp_junction.store.tool_settings import DeclaredTool
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus
from mcp_junction.vault.vault import Vault

BOUND = 20
TRIES = 5
IMPATIENT = 0.15
"""Seconds after which a statement is given up while one hangs; otherwise it is PATIENCE."""
ERRORS = {
    "sqlite": [
        lambda: sqlite3.OperationalError("disk I/O error"),
        lambda: sqlite3.DatabaseError("database disk image is malformed"),
        lambda: sqlite3.InterfaceError("bad parameter or other API misuse"),
        lambda: sqlite3.InternalError("?"),
    ],
    "postgres": [
        lambda: asyncpg.InterfaceError("connection is closed"),
        lambda: asyncpg.ConnectionDoesNotExistError("connection was closed"),
        lambda: asyncpg.UndefinedTableError("no such relation"),
        lambda: asyncpg.PostgresError("?"),
        lambda: asyncpg.InternalClientError("?"),
        lambda: ConnectionResetError("reset by peer"),
    ],
}


def kind_of(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgres"


@pytest.fixture(autouse=True)
def none_unreadable():
    """What was found unreadable in another test's database is no concern of this one's."""
    UNREADABLE.clear()


@pytest.fixture
def faults() -> StatementFaults:
    return StatementFaults()


@pytest.fixture
async def faulty(store_url, vault, faults, tmp_path):
    """The store with faults below it; the Opener makes audits on it."""
    made = faults.connection_class(store_url)
    store = await open_store(store_url, vault, connection_class=made)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        stack.callback(faults.clear)
        store.opener = Opener(stack, store_url, vault, tmp_path / "data")
        yield store


def be_patient(store: Store, seconds: float = PATIENCE) -> None:
    database = store._database
    for part in (database, getattr(database, "_readers", database)):
        part._patience = seconds


def hang(store: Store, faults: StatementFaults, text: str) -> None:
    be_patient(store, IMPATIENT)
    faults.hang(text)


def heal(store: Store, faults: StatementFaults) -> None:
    faults.clear()
    be_patient(store)


Step = Callable[[], Awaitable[object]]


def steps_of(store: Store) -> list[Step]:
    """Steps that use every table; each builds on what those before it have stored."""
    one = server("one")
    tools = [definition("a"), definition("b")]
    skill = SkillRecord("s", "skill", "what it is")
    return [
        store.generations,
        lambda: store.servers.add(one),
        store.servers.all,
        lambda: store.servers.find("one"),
        store.servers.count,
        lambda: store.servers.change(one.id, {"description": "x"}),
        lambda: store.servers.set_status({one.id: {"status": "CONNECTED"}}),
        lambda: store.tools.replace(one.id, tools),
        lambda: store.tools.replace(one.id, tools[:1]),
        store.tools.all,
        store.tools.count,
        lambda: store.tool_settings.change(one.id, "a", {"enabled": False}, "ann"),
        store.tool_settings.all,
        store.protected.renew,
        lambda: store.declared_tools.replace(one.id, [DeclaredTool(one.id, "a", b"{}", "1")]),
        store.declared_tools.all,
        lambda: store.tools.mark(one.id, {"a": (("x",), True)}),
        lambda: store.skills.add(skill),
        store.skills.all,
        store.skills.needing_vector,
        lambda: store.classification.pending(("", ""), 10),
        lambda: store.classification.put(one.id, [Classified("t", "h", {"s": 1.0}, "s", b"v")]),
        lambda: store.skills.remove("s"),
        lambda: store.offers.replace(one.id, "prompts", tools),
        store.offers.all,
        lambda: store.history.add(one.id, HistoryEvent.CONNECTED),
        lambda: store.history.of(one.id),
        lambda: store.settings.put("x", 1, "test"),
        store.settings.all,
        store.keys.all,
        lambda: store.events.append([NewEvent("x", {})]),
        store.events.bounds,
        lambda: store.events.after(0, limit=10),
        lambda: store.audit.rows(AuditQuery()),
        store.audit.writers,
        store.audit.chains,
        lambda: store.audit.oldest_ends(0.0),
        *resilience_steps(store),
        lambda: store.servers.remove(one.id),
    ]


async def take(step: Step) -> list[BaseException]:
    """Take a step; what it failed with."""
    try:
        async with asyncio.timeout(BOUND):
            await step()
    except Exception as error:  # noqa: BLE001 - the test looks at what it is
        return [error]
    return []


async def everything(store: Store) -> list[BaseException]:
    """Take all steps, each whatever became of the one before; what steps failed with."""
    return [error for step in steps_of(store) for error in await take(step)]


async def statements_of_steps(store: Store, faults: StatementFaults) -> list[list[str]]:
    """Take all steps; for each the statements that are first used in it, on open connections."""
    assert await everything(store) == []
    faults.seen.clear()
    found = []
    for step in steps_of(store):
        known = set(faults.seen)
        assert await take(step) == []
        found.append([statement for statement in faults.seen if statement not in known])
    return found


async def go_through(
    store: Store, faults: StatementFaults, begin: Callable[[str], None]
) -> AsyncIterator[tuple[str, list[BaseException]]]:
    """Take each step with a fault at every statement that is first used in it, and then without.

    Yields the statement and what the step failed with. Where little time is given to statements, a
    sound one may run out of it on a busy machine: then the step is taken again.
    """
    statements = await statements_of_steps(store, faults)
    for step, first_used in zip(steps_of(store), statements, strict=True):
        for statement in first_used:
            before, tries = faults.met, 0
            while faults.met == before and (tries := tries + 1) <= TRIES:
                begin(statement)
                failures = await take(step)
                heal(store, faults)
            assert faults.met > before, statement
            yield statement, failures
        assert [error for error in await take(step) if not is_repeated(error)] == []
    assert await everything(store) == [], "it has recovered"


def is_repeated(error: BaseException) -> bool:
    """Whether a step failed because it has been done before, and not because of the store."""
    return isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)


def resilience_steps(store: Store) -> list[Callable[[], Awaitable[object]]]:
    """The steps that use circuits, claims and escalations."""
    circuit = BreakerRow("s", "t", BreakerState.OPEN, 5, opened_at=1.0)
    claim = ClaimRecord("c", "agent:a", "s", "t", "k", "h", ClaimState.RUNNING, "w", 1.0)
    failed = EscalationRecord("e", "a", "s", "t", "link", "cut", None, 1, None, 1, 1.0, 1.0)
    return [
        lambda: store.circuits.store([circuit]),
        store.circuits.all,
        lambda: store.circuits.forget("s"),
        lambda: store.claims.make(claim),
        lambda: store.claims.find(claim.claim_key),
        lambda: store.claims.hold("c", 2.0),
        lambda: store.claims.settle("c", ClaimState.DONE, b"{}"),
        lambda: store.claims.retire(1.0, ["w"]),
        lambda: store.claims.release("c"),
        lambda: store.escalations.store([failed]),
        lambda: store.escalations.read(EscalationQuery()),
        lambda: store.escalations.acknowledge("e", 1.0, "ann", None),
        lambda: store.escalations.retire(2.0, 10),
    ]


async def clean(store: Store) -> None:
    """Remove what steps have left whose end failed."""
    for left in await store.servers.all():
        await store.servers.remove(left.id)
    for skill in await store.skills.all():
        await store.skills.remove(skill.id)


def check(failures: list[BaseException], statement: str) -> None:
    """What fails because a statement did is StoreUnavailable; what follows may be NotFound."""
    assert [error for error in failures if not isinstance(error, StoreError)] == [], statement
    assert any(isinstance(error, StoreUnavailable) for error in failures), statement


@pytest.mark.bulk
@pytest.mark.req("S-15", "R-SUPERVISE")
async def test_whichever_statement_fails_and_however_the_store_is_unavailable(
    faulty, faults, store_url
):
    errors = cycle(ERRORS[kind_of(store_url)])
    met = []
    async for statement, failures in go_through(
        faulty, faults, lambda text: faults.fail(text, next(errors))
    ):
        check(failures, statement)
        met.append(statement)
    assert len(met) > 40
    for text in ("BEGIN", "COMMIT", "SELECT", "INSERT INTO", "UPDATE", "DELETE FROM", "counters"):
        faults.fail(text, next(errors))
        failures = await everything(faulty)
        heal(faulty, faults)
        check(failures, text)
        await clean(faulty)
    assert await everything(faulty) == [], "it has recovered"


@pytest.mark.bulk
@pytest.mark.req("S-15", "R-SUPERVISE")
async def test_whichever_statement_hangs_the_store_is_unavailable_and_recovers(faulty, faults):
    met = []
    async for statement, failures in go_through(
        faulty, faults, lambda text: hang(faulty, faults, text)
    ):
        check(failures, statement)
        met.append(statement)
    assert len(met) > 40
    assert PATIENCE < BLIND_AFTER, "who asks is told within five seconds"


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # PostgreSQL has a pool for it
@pytest.mark.parametrize("text", ["query_only", "busy_timeout", "foreign_keys"])
@pytest.mark.req("S-15")
async def test_a_connection_that_cannot_be_set_up_again_is_set_up_later(faulty, faults, text):
    async def read() -> list[BaseException]:
        """By all readers, since each has a connection of its own."""
        found = await asyncio.gather(*(take(faulty.servers.all) for _ in range(20)))
        return [error for errors in found for error in errors]

    faults.fail("SELECT", ERRORS["sqlite"][0])  # which ends the connections
    assert len(await read()) == 20
    faults.fail(text, ERRORS["sqlite"][0])
    check(await read(), text)
    heal(faulty, faults)
    assert await read() == []


@pytest.mark.req("S-15")
async def test_what_was_given_up_while_it_hung_is_not_done_afterwards(faulty, faults):
    hang(faulty, faults, "INSERT INTO servers")
    with pytest.raises(StoreUnavailable, match=r"not answered|does not serve"):
        await faulty.servers.add(server("one"))
    heal(faulty, faults)
    await faulty.servers.add(server("two"))
    assert [found.name for found in await faulty.servers.all()] == ["two"]


@pytest.mark.req("S-15")
async def test_a_missing_table_keeps_nobody_from_the_others(faulty, dump):
    kept = server("kept")
    await faulty.servers.add(kept)
    await dump.run("ALTER TABLE events RENAME TO mislaid")
    event = NewEvent("server.updated", {})
    given = [
        faulty.events.append([event]),
        faulty.servers.set_status({kept.id: {"status": "ERROR"}}),
    ]
    ended = await asyncio.gather(*given, return_exceptions=True)
    assert isinstance(ended[0], StoreUnavailable)
    assert ended[1] is None
    await dump.run("ALTER TABLE mislaid RENAME TO events")
    assert len(await faulty.events.append([event])) == 1


# -- keys

KEY_FAULTS = ["error", "hang", "missing table", "unreadable counter"]


@pytest.mark.req("S-15")
@pytest.mark.parametrize("fault", KEY_FAULTS)
async def test_keys_that_cannot_be_read_are_good_for_five_seconds(
    faulty, faults, dump, store_url, vault, fault
):
    now = 100.0
    ring = KeyRing(faulty, now=lambda: now)
    key, text = await ring.create(Role.AGENT, "bot", "test")
    bearer = f"Bearer {text}".encode()
    other = KeyRing(await open_store(store_url, vault))
    if fault == "error":
        faults.fail("FROM counters", ERRORS[kind_of(store_url)][-1])
    elif fault == "hang":
        hang(faulty, faults, "FROM counters")
    elif fault == "missing table":
        await dump.run("ALTER TABLE counters RENAME TO mislaid")
    else:
        await dump.run("UPDATE counters SET value = -5 WHERE topic = 'keys'")
        if kind_of(store_url) == "sqlite":
            await dump.run("UPDATE counters SET value = 'x' WHERE topic = 'keys'")
    await ring.refresh()
    now += BLIND_AFTER - 1
    assert ring.principal(bearer) is not None
    now += 1
    if fault == "unreadable counter":  # then keys are read each time
        await ring.refresh()
        assert ring.principal(bearer) is not None
        await other.revoke(key.id, "test")
        await ring.refresh()
        assert ring.principal(bearer) is None
    else:
        assert ring.principal(bearer) is None
        assert ring.is_blind
        await ring.refresh()
        assert ring.is_blind
        heal(faulty, faults)
        if fault == "missing table":
            await dump.run("ALTER TABLE mislaid RENAME TO counters")
        await ring.refresh()
        assert ring.principal(bearer) is not None
        await other.revoke(key.id, "test")
        await ring.refresh()
        assert ring.principal(bearer) is None
    await other._store.close()


@pytest.mark.req("S-15")
async def test_a_refresh_that_never_ends_makes_keys_bad_all_the_same(faulty, faults, monkeypatch):
    now = 100.0
    ring = KeyRing(faulty, now=lambda: now)
    _, text = await ring.create(Role.AGENT, "bot", "test")
    never = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(faulty, "generations", lambda: never)
    tasks = TaskScope("test")
    tasks.spawn(ring.refresh())
    await asyncio.sleep(0)
    now += BLIND_AFTER
    assert ring.principal(f"Bearer {text}".encode()) is None
    await tasks.close()


DAMAGED_KEYS = ["role = 'king'", "sha256 = 'no hash'", "agent = 'ann'"]


@pytest.mark.req("S-15")
@pytest.mark.parametrize("damage", DAMAGED_KEYS)
async def test_a_key_whose_row_is_damaged_is_none_and_the_others_are_good(store, dump, damage):
    ring = await KeyRing.open(store)
    bad, bad_text = await ring.create(Role.AGENT, "bad", "test")
    _, good_text = await ring.create(Role.AGENT, "good", "test")
    await dump.run(f"UPDATE keys SET {damage} WHERE id = '{bad.id}'")
    await dump.run("UPDATE counters SET value = value + 1 WHERE topic = 'keys'")
    fresh = await KeyRing.open(store)
    await ring.refresh()
    for one in (ring, fresh):
        assert one.principal(f"Bearer {bad_text}".encode()) is None
        assert one.principal(f"Bearer {good_text}".encode()) is not None


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # it keeps no types
@pytest.mark.req("S-15")
async def test_a_key_whose_row_has_other_types_is_left_out_and_counted(store, dump, caplog):
    ring = await KeyRing.open(store)
    bad, bad_text = await ring.create(Role.AGENT, "bad", "test")
    _, good_text = await ring.create(Role.AGENT, "good", "test")
    await dump.run(f"UPDATE keys SET created_at = 'once' WHERE id = '{bad.id}'")
    for _ in range(2):
        fresh = await KeyRing.open(store)
        assert fresh.principal(f"Bearer {bad_text}".encode()) is None
        assert fresh.principal(f"Bearer {good_text}".encode()) is not None
    assert store.unreadable == 1
    assert caplog.text.count("cannot be read and is left out") == 1


# -- rows

DAMAGED = {
    "servers": "connection_config = (SELECT connection_config FROM servers WHERE name = 'good')",
    "tools": "flags = 'no json'",
    "events": "data = '[1'",
    "connection_history": "details = 'no json'",
    "settings": "value = '{'",
}


@pytest.mark.req("S-15")
@pytest.mark.parametrize("table", DAMAGED)
async def test_a_row_that_cannot_be_read_is_left_out_and_reported_once(store, dump, table, caplog):
    good, bad = server("good"), server("bad")
    for one in (good, bad):
        await store.servers.add(one)
        await store.history.add(one.id, HistoryEvent.CONNECTED)
        await store.settings.put(one.name, 1, "test")
        await store.events.append([NewEvent(one.name, {})])
        await store.tools.replace(one.id, [definition(one.name)])
    which = {"events": "type = 'bad'", "connection_history": f"server_id = '{bad.id}'"}
    where = which.get(table, "name = 'bad'")
    await dump.run(f"UPDATE {table} SET {DAMAGED[table]} WHERE {where}")
    before = store.unreadable
    for _ in range(2):
        servers = [one.name for one in await store.servers.all()]
        tools = {one.name: one for one in await store.tools.all()}
        events = [one.type for one in await store.events.after(0, limit=10)]
        assert [one.event_type for one in await store.history.of(good.id)] == ["CONNECTED"]
        history = await store.history.of(bad.id)
        settings = await store.settings.all()
    assert (servers == ["good"]) == (table == "servers")
    assert (events == ["good"]) == (table == "events")
    assert (history == []) == (table == "connection_history")
    assert (list(settings) == ["good"]) == (table == "settings")
    assert tools["bad"].quarantined == (table == "tools"), "its pin cannot be read"
    assert not tools["good"].quarantined
    assert store.unreadable == before + 1
    assert caplog.text.count("cannot be read and is left out") == 1


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # PostgreSQL takes no such text
@pytest.mark.req("S-15")
async def test_a_text_that_is_no_utf8_makes_only_its_own_row_unreadable(store, dump):
    ring = await KeyRing.open(store)
    bad, bad_text = await ring.create(Role.AGENT, "bad", "test")
    _, good_text = await ring.create(Role.AGENT, "good", "test")
    for name in ("good", "bad"):
        one = await store.servers.add(server(name))
        await store.tools.replace(one.id, [definition(name)])
    for place in (
        f"keys SET agent = %s WHERE id = '{bad.id}'",
        "servers SET description = %s WHERE name = 'bad'",
        "tools SET flags = %s WHERE name = 'bad'",
        "counters SET topic = %s WHERE topic = 'offers'",
    ):
        await dump.run("UPDATE " + place % "CAST(X'FFFE41' AS TEXT)")
    await dump.run("UPDATE counters SET value = value + 1 WHERE topic = 'keys'")
    await ring.refresh()
    for known in (ring, await KeyRing.open(store)):
        assert known.principal(f"Bearer {bad_text}".encode()) is None
        assert known.principal(f"Bearer {good_text}".encode()) is not None
    assert [one.name for one in await store.servers.all()] == ["good"]
    tools = {one.name: one.quarantined for one in await store.tools.all()}
    assert tools == {"good": False, "bad": True}
    again = await store.tools.replace(one.id, [definition("bad"), definition("new")], strict=True)
    assert [tool.name for tool in again.added] == ["new"]


@pytest.mark.req("S-15")
async def test_a_damaged_tool_keeps_its_server_from_nothing(store, dump):
    one = await store.servers.add(server("one"))
    await store.tools.replace(one.id, [definition("a"), definition("b")])
    await dump.run("UPDATE tools SET flags = 'no json' WHERE name = 'a'")
    changes = await store.tools.replace(
        one.id, [definition("a"), definition("b"), definition("c")], strict=True
    )
    assert [tool.name for tool in changes.added] == ["c"]
    found = {tool.name: tool.quarantined for tool in await store.tools.all()}
    assert found == {"a": True, "b": False, "c": False}


@pytest.mark.req("S-15")
async def test_when_no_connection_can_be_opened_the_key_is_asked_for(store, opener):
    await store.servers.add(server("one"))
    async with await open_store(opener.url, Vault([bytes(32)])) as stranger:
        with pytest.raises(MissingKey, match="MCP_CREDENTIAL_KEY"):
            await stranger.servers.all()


@pytest.mark.req("S-15")
async def test_a_row_alone_that_cannot_be_read_says_so(store, dump):
    await store.settings.put("x", 1, "test")
    await dump.run("UPDATE settings SET value = '{'")
    with pytest.raises(UnreadableRow, match="settings cannot be read"):
        await store.settings.find("x")


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # it keeps no types
@pytest.mark.req("S-15")
async def test_a_page_of_the_audit_that_cannot_be_read_is_missed_by_verification(
    store, opener, dump
):
    log = await opener.log(store)
    await log.flush()
    for _ in range(3):
        await log.intent(log.entry("intent", "bot", "tools/call"))
    await dump.run("UPDATE audit_pages SET body = 7.5 WHERE last_seq = 2")
    assert len(await store.audit.rows(AuditQuery(kind="intent"))) == 2
    verdict = await verify(store.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all())
    assert [finding.seq for finding in verdict.findings] == [2]


# -- the audit, events and history

WRITES = ["INSERT INTO audit_pages", "audit_open", "UPDATE audit_writers", "BEGIN", "COMMIT"]


def transacted(text) -> IntentCheck | None:
    """A check: with one, a page on PostgreSQL is more than one statement, in a transaction."""

    def make():
        yield Query("SELECT 1")

    return IntentCheck(make) if text in ("BEGIN", "COMMIT") else None


@pytest.mark.req("S-15")
@pytest.mark.parametrize("how", ["error", "hang"])
@pytest.mark.parametrize("text", WRITES)
async def test_audit_rows_outlast_a_fault_at_any_statement_and_intents_are_refused(
    faulty, faults, store_url, text, how
):
    log = await faulty.opener.log(faulty)
    await log.flush()
    stored = await log.intent(log.entry("intent", "bot", "tools/call"))
    if how == "error":
        faults.fail(text, ERRORS[kind_of(store_url)][0])
    else:
        hang(faulty, faults, text)
    refused = 0
    for number in range(20):
        log.record(log.entry("call", "bot", "tools/call", target=f"t{number}"))
        try:
            async with asyncio.timeout(BOUND):
                await log.intent(log.entry("intent", "bot", "tools/call"), transacted(text))
        except StoreUnavailable:
            refused += 1
    log.record(log.entry("outcome", "bot", "tools/call", outcome="ok", closes=stored))
    assert refused == 20 or text == "UPDATE audit_writers"
    heal(faulty, faults)
    async with asyncio.timeout(BOUND):
        await log.flush()
        await log.intent(log.entry("intent", "bot", "tools/call"))
    calls = await faulty.audit.rows(AuditQuery(kind="call", limit=100))
    assert (len(calls), log.lost) == (20, 0)
    opener = faulty.opener
    verdict = await verify(
        faulty.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all()
    )
    assert verdict.findings == []


@pytest.mark.req("S-15")
@pytest.mark.parametrize("how", ["error", "hang"])
@pytest.mark.parametrize("text", ["counters", "events", "BEGIN", "COMMIT"])
async def test_events_outlast_a_fault_at_any_statement(faulty, faults, store_url, text, how):
    async with Bus(faulty.events) as bus:
        if how == "error":
            faults.fail(text, ERRORS[kind_of(store_url)][0])
        else:
            hang(faulty, faults, text)
        for number in range(5):
            bus.publish(f"e{number}", {})
        async with asyncio.timeout(BOUND):
            while not faults.met:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        heal(faulty, faults)
        async with asyncio.timeout(BOUND):
            await bus.flush()
        told = [event.type for event in await faulty.events.after(0, limit=100)]
        assert sorted(set(told)) == [f"e{number}" for number in range(5)]
        assert bus.lost == 0


@pytest.mark.req("S-15")
@pytest.mark.parametrize("how", ["error", "hang"])
async def test_history_outlasts_a_fault_at_any_statement(faulty, faults, store_url, how):
    one = await faulty.servers.add(server("one"))
    tasks = TaskScope("test")
    history = HistoryWriter(faulty, tasks)
    history.begin()
    if how == "error":
        faults.fail("connection_history", ERRORS[kind_of(store_url)][0])
    else:
        hang(faulty, faults, "connection_history")
    for _ in range(5):
        history.add(one.id, HistoryEvent.CONNECTED, {})
    async with asyncio.timeout(BOUND):
        while not faults.met:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    heal(faulty, faults)
    await history.flush(BOUND)
    assert len(await faulty.history.of(one.id)) == 5
    await tasks.close()
