"""The index of the audit: what it leads to is what a naive search finds, whatever was indexed."""

import itertools
import random

import msgspec
import pytest

from mcp_junction.audit.chain import Chain
from mcp_junction.audit.entries import Entry
from mcp_junction.audit.maintenance import index_missing, reindex, retire
from mcp_junction.audit.verify import verify
from mcp_junction.protocol.correlation import made_at, new_correlation_id
from mcp_junction.store import audit_search, audit_terms
from mcp_junction.store.audit_records import AuditQuery, AuditWriter
from mcp_junction.store.audit_search import AuditSearch
from mcp_junction.store.audit_terms import CorrelationFilter, may_hold, select_rows, when

pytestmark = pytest.mark.req("REQ-MCP-OBS-002")
NOW = 1_700_000_000.0


def own_id(at: float) -> str:
    return f"j{int(at * 1000):x}-abcd1234-7"


def random_entry(rng: random.Random, at: float) -> Entry:
    agent = f"a{rng.choice([0, 0, 0, 0, 1, 1, 2, 3])}"
    named = rng.random() < 0.2
    late = rng.random() < 0.1
    ids = [None, f"c{rng.randrange(30)}", own_id(at - rng.random()), own_id(at - 500 * late)]
    return Entry(
        kind="call",
        actor="boss" if named else agent,
        role="admin" if named else "agent",
        action="tools/call",
        at=at,
        agent_id=agent if named else None,
        server_id=f"s{rng.randrange(3)}",
        tool_name=(tool := f"t{rng.randrange(4)}"),
        target=f"box.{tool}",
        decision=rng.choice(["ALLOW"] * 8 + ["DENY", "unknown"]),
        correlation_id=rng.choice(ids),
        outcome="ok",
    )


class Filled:
    """A store with some chains, and all their rows."""

    def __init__(self, store, opener) -> None:
        self.store, self.trail, self.opener = store, store.audit, opener
        self.keys = opener.vault.derive_keys("audit")
        self.rows = []
        self.pages = []

    async def write(self, writer, entries, sizes, *, ended=True, closes=True) -> None:
        chain = Chain(self.keys[0], writer)
        at = NOW if ended else None
        made = AuditWriter(writer, "k", "elsewhere", 1, NOW, 4e9, at)
        await self.trail.enter(made)
        while entries:
            size = next(sizes)
            some, entries = entries[:size], entries[size:]
            sealed = chain.extend(some)
            self.pages.append(sealed.page)
            self.rows += sealed.page.rows()
            await self.trail.append(sealed, durable=False)
        if closes:
            await self.trail.leave([writer], NOW, chain.index.close())

    def naive(self, **asked) -> list:
        query = AuditQuery(**asked)
        found = [row for page in self.pages for row in select_rows(page, query)]
        return sorted(found, key=when, reverse=True)

    async def searched(self, limit=7, **asked) -> list:
        """All rows that are found, page by page."""
        found, before = [], None
        for _ in range(10_000):
            got = await self.trail.find(AuditQuery(**asked, limit=limit, before=before))
            assert len(got.rows) <= limit
            found += got.rows
            if got.before is None:
                return found
            before = got.before
        raise AssertionError("the search does not end")

    async def verdict(self):
        return await verify(self.trail, self.keys, ())


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(audit_terms, "MAX_PAGES", 5)
    monkeypatch.setattr(audit_search, "_WALKED", 9)
    monkeypatch.setattr(audit_search, "_SEGMENTS", 4)
    monkeypatch.setattr(audit_search, "_FILTERS", 3)


@pytest.fixture
async def filled(store, opener, small) -> Filled:
    """Three chains that overlap in time: one is indexed, one crashed, one is at work."""
    made, rng = Filled(store, opener), random.Random(7)

    crashed, at_work = {"closes": False}, {"ended": False, "closes": False}
    for writer, state in (("w1", {}), ("w2", crashed), ("w3", at_work)):
        times = sorted(NOW + rng.random() * 3_600 for _ in range(61))
        entries = [random_entry(rng, at) for at in times]
        await made.write(writer, entries, itertools.cycle([1, 3, 2, 4, 1, 2]), **state)
    return made


QUERIES = [
    {},
    {"agent": "a0"},
    {"agent": "a3"},
    {"actor": "boss"},
    {"agent": "nobody"},
    {"server_id": "s1", "tool": "t2"},
    {"tool": "box.t2", "agent": "a1"},
    {"decision": "DENY"},
    {"decision": "unknown", "agent": "a0"},
    {"decision": "ALLOW", "since": NOW + 1_000, "until": NOW + 2_000},
    {"agent": "a1", "since": NOW + 1_000, "until": NOW + 2_000},
    {"correlation_id": "c7"},
    {"correlation_id": "c7", "agent": "a0"},
    {"correlation_id": "nothing"},
    {"own_calls_of": "a1"},
    {"own_calls_of": "boss"},
    {"own_calls_of": "a1", "outcome": "error"},
    {"own_calls_of": "a1", "tool": "box.t2"},
    {"outcome": "ok", "server_id": "s2"},
]


async def test_what_is_found_is_what_a_naive_search_finds(filled):
    for query in QUERIES:
        assert await filled.searched(**query) == filled.naive(**query), query
    for row in filled.rows[::20]:
        if row.correlation_id is not None:
            asked = {"correlation_id": row.correlation_id}
            assert await filled.searched(**asked) == filled.naive(**asked), row


async def test_a_search_that_ends_early_goes_on_where_it_was(filled, monkeypatch):
    monkeypatch.setattr(audit_search, "ENOUGH", 1)
    monkeypatch.setattr(AuditSearch.__init__, "__defaults__", (1,))
    for query in QUERIES:
        assert await filled.searched(limit=3, **query) == filled.naive(**query), query


async def test_what_was_not_indexed_is_indexed_when_its_writer_has_ended(filled):
    before = await filled.trail.index.tails()
    assert {"w2", "w3"} <= before.keys()
    assert await index_missing(filled.trail, "other", NOW) > 0
    assert (await filled.trail.index.tails()).keys() == {"w3"}
    assert await index_missing(filled.trail, "other", NOW) == 0
    for query in QUERIES:
        assert await filled.searched(**query) == filled.naive(**query), query
    assert not (await filled.verdict()).index_faults


async def test_the_index_can_be_made_anew(filled):
    await reindex(filled.trail, NOW)
    assert (await filled.trail.index.tails()).keys() == {"w3"}
    for query in QUERIES:
        assert await filled.searched(**query) == filled.naive(**query), query
    verdict = await filled.verdict()
    assert (verdict.findings, verdict.index_faults) == ([], [])


TAMPERED = {
    "a term is gone": "DELETE FROM audit_terms WHERE term = (SELECT min(term) FROM audit_terms)",
    "a term leads elsewhere": "UPDATE audit_terms SET pages = {} WHERE term ="
    " (SELECT max(term) FROM audit_terms)",
    "a term was added": "INSERT INTO audit_terms (term, last_at, segment, first_at, pages)"
    " VALUES (7, 1.0, 1, 1.0, {})",
    "a segment is gone": "DELETE FROM audit_segments WHERE id = (SELECT min(id) FROM"
    " audit_segments)",
    "pages are gone": "UPDATE audit_segments SET pages = {} WHERE id = 2",
    "ids are gone": "UPDATE audit_segments SET correlations = {}",
}


@pytest.mark.parametrize("how", TAMPERED.values(), ids=TAMPERED)
async def test_an_index_that_was_tampered_with_is_reported_and_is_no_evidence(filled, dump, how):
    byte = "x'90'" if "sqlite" in filled.opener.url else "'\\x90'::bytea"
    await dump.run(how.replace("{}", byte))
    verdict = await filled.verdict()
    assert not verdict.findings, "the rows are as they were"
    assert verdict.index_faults
    assert await filled.searched() == filled.naive(), "without a filter it is not used"
    await filled.searched(agent="a0")
    await filled.searched(correlation_id="c7")
    await reindex(filled.trail, NOW)
    assert not (await filled.verdict()).index_faults


async def test_retention_removes_terms_with_their_pages(filled):
    log = await filled.opener.log(filled.store, now=lambda: NOW + 9_000)
    await log.flush()
    await retire(filled.trail, log, filled.opener.checkpoints, filled.keys, NOW + 2_000)
    assert not (await filled.verdict()).index_faults
    found = await filled.searched(agent="a0")
    assert found
    assert {row.at for row in found} >= {r.at for r in filled.naive(agent="a0", since=NOW + 2_100)}
    named, stored = await filled.trail.index.counts()
    assert named == stored
    await retire(filled.trail, log, filled.opener.checkpoints, filled.keys, NOW + 4_000)
    assert set(await filled.trail.index.writers()) <= {log.writer}


async def test_a_store_of_before_there_was_an_index_is_searched_and_then_indexed(
    filled, dump, monkeypatch
):
    await filled.trail.index.drop_all()
    monkeypatch.setattr(audit_search, "_LONG_TAIL", 10)
    for query in QUERIES:
        assert await filled.searched(**query) == filled.naive(**query), query
    await index_missing(filled.trail, "other", NOW)
    for query in QUERIES:
        assert await filled.searched(**query) == filled.naive(**query), query


async def test_pages_of_different_writers_at_the_same_time_are_all_found(store, opener, small):
    made = Filled(store, opener)
    for number in range(6):
        entries = [random_entry(random.Random(n), NOW + n // 4) for n in range(12)]
        await made.write(f"w{number}", entries, iter([1] * 12))
    for query in ({}, {"agent": "a0"}, {"decision": "DENY"}):
        assert await made.searched(limit=2, **query) == made.naive(**query)


def test_a_filter_holds_what_it_was_given_and_little_else():
    for count in (1, 10, 300, 9_000):
        filled = CorrelationFilter()
        for number in range(count):
            filled.add(f"request-{number}")
        encoded = filled.encode()
        assert len(encoded) <= max(8, count * 4)
        assert all(may_hold(encoded, f"request-{number}") for number in range(count))
        wrong = sum(may_hold(encoded, f"other-{number}") for number in range(2_000))
        assert wrong < 100
    assert not may_hold(CorrelationFilter().encode(), "x")


def test_an_id_of_our_own_tells_when_it_was_made():
    made = made_at(new_correlation_id())
    assert made is not None
    assert 1.7e9 < made < 1e11
    for other in ("", "j", "c-1", "j18xyz", "j" + "g" * 11 + "-1", "x" * 300):
        assert made_at(other) is None


def row_of(**changes):
    entry = Entry(kind="call", actor="bob", role="agent", action="tools/call", at=NOW, target="x")
    entry = msgspec.structs.replace(entry, **{"decision": "ALLOW", **changes})
    return Chain(b"k" * 32, "w").extend([entry]).page


def test_a_row_of_an_agents_own_is_told_from_one_of_a_namesake():
    cases = {
        (): True,
        (("role", "admin"),): False,
        (("kind", "denials"),): False,
        (("action", "key.create"),): False,
        (("actor", "boss"), ("agent_id", "bob"), ("decision", "ALLOW")): True,
        (("actor", "boss"), ("agent_id", "bob"), ("decision", "DENY")): False,
        (("agent_id", "eve"),): False,
    }
    for changes, expected in cases.items():
        found = select_rows(row_of(**dict(changes)), AuditQuery(own_calls_of="bob"))
        assert bool(found) is expected, changes


@pytest.mark.req("S-07")
def test_to_its_agent_a_row_about_what_is_hidden_is_one_about_nothing():
    hidden = {
        "decision": "DENY",
        "rule": "default",
        "outcome": "denied",
        "server_id": "secret",
        "tool_name": "vault",
        "detail": {"reason": "it is hidden: secret.vault", "count": 1},
    }
    unknown = {"decision": "unknown", "outcome": "error", "detail": {"reason": "no", "count": 1}}
    pages = row_of(**hidden), row_of(**unknown)
    (one,), (two,) = (select_rows(page, AuditQuery(own_calls_of="bob")) for page in pages)
    assert one == two
    for asked in ({"server_id": "secret"}, {"tool": "vault"}, {"decision": "DENY"}):
        query = AuditQuery(own_calls_of="bob", **asked)
        assert [select_rows(page, query) for page in pages] == [[], []]
    query = AuditQuery(own_calls_of="bob", decision="unknown")
    assert [len(select_rows(page, query)) for page in pages] == [1, 1]
