"""Denials: the first is a row at once, the rest are counted, and the counts add up."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.audit import denials as module
from mcp_junction.audit.denials import ANONYMOUS, MOST, OTHERS, SAMPLES, Denial, Denials
from mcp_junction.policy.decision import NO_GRANT
from mcp_junction.store.audit_records import UNKNOWN, AuditQuery

pytestmark = pytest.mark.req("NFR-SEC4")


class Rows(list):
    """What was recorded."""

    @property
    def total(self) -> int:
        return sum(row.detail["count"] for row in self)


def denied(target="box.echo", actor="vi", address=None, action="tools/call") -> Denial:
    return Denial("call", actor, action, target, "no right", "viewer", "s1", address)


@pytest.fixture
async def rows() -> Rows:
    return Rows()


@pytest.fixture
async def denials(rows):
    made = Denials(rows.append, now=lambda: 100.0)
    yield made
    made.close()


async def test_what_is_hidden_and_what_is_not_there_are_counted_together(denials, rows):
    """An agent reads its rows: their number must not tell it which of its names are hidden."""
    missing = msgspec.structs.replace(denied(), decision=UNKNOWN, reason="nothing", server_id=None)
    hidden = msgspec.structs.replace(denied(), rule=NO_GRANT, reason="hidden")
    for denial in (missing, missing, hidden, missing, hidden):
        denials.add(denial)
    denials.flush()
    assert [(row.decision, row.detail["count"]) for row in rows] == [(UNKNOWN, 1), ("DENY", 4)]
    assert rows[1].detail == {"reason": "hidden", "count": 4, "since": 100.0, "unknown": 2}
    assert rows[1].server_id == "s1", "the operator learns which it was"
    for _ in range(2):
        denials.add(missing)
    denials.flush()
    assert (rows[2].decision, rows[2].detail["count"]) == (UNKNOWN, 2)
    assert "unknown" not in rows[2].detail


async def test_the_first_is_a_row_at_once_and_the_others_are_one_a_minute(denials, rows):
    denials.add(denied())
    (first,) = rows
    assert (first.kind, first.actor, first.role) == ("call", "vi", "viewer")
    assert (first.action, first.target, first.server_id) == ("tools/call", "box.echo", "s1")
    assert (first.decision, first.outcome) == ("DENY", "denied")
    assert first.detail == {"reason": "no right", "count": 1}
    for _ in range(500):
        denials.add(denied())
    assert len(rows) == 1
    denials.flush()
    assert [row.detail["count"] for row in rows] == [1, 500]
    assert rows[1].detail["since"] == 100.0
    denials.add(denied())
    assert len(rows) == 2, "it is still the same one, and waits for the next minute"
    denials.flush()
    denials.flush()
    assert [row.detail["count"] for row in rows] == [1, 500, 1]
    denials.add(denied())
    assert len(rows) == 4, "after a minute without one, it is a first one again"


@pytest.mark.parametrize("other", [{"target": "box.x"}, {"actor": "wi"}, {"action": "prompts/get"}])
async def test_another_principal_action_or_target_has_a_row_of_its_own(denials, rows, other):
    denials.add(denied())
    denials.add(denied(**other))
    assert len(rows) == 2


async def test_beyond_a_thousand_the_rest_is_one_row_per_principal_with_samples(denials, rows):
    for number in range(MOST):
        denials.add(denied(f"t{number}"))
    assert len(rows) == MOST
    for number in range(300):
        denials.add(denied(f"more{number}"))
        denials.add(denied(f"more{number}", actor="wi"))
    assert len(rows) == MOST
    denials.flush()
    rest = rows[MOST:]
    assert [(row.actor, row.detail["count"]) for row in rest] == [("vi", 300), ("wi", 300)]
    assert rest[0].detail["samples"][0] == {"action": "tools/call", "target": "more0"}
    assert len(rest[0].detail["samples"]) == SAMPLES
    assert rows.total == MOST + 600


async def test_without_a_principal_the_rest_is_one_row_per_network(denials, rows):
    for number in range(MOST):
        denials.add(denied(f"t{number}"))
    for number in range(50):
        for address in (
            f"203.0.113.{number}",
            f"2001:db8:1:2::{number:x}",
            f"::ffff:192.0.2.{number}",
        ):
            denials.add(denied("/mcp", ANONYMOUS, address))
    denials.add(denied("/mcp", ANONYMOUS, "no address"))
    denials.flush()
    found = {row.detail["network"]: row.detail["count"] for row in rows[MOST:]}
    assert found == {"203.0.113.0/24": 50, "2001:db8:1:2::/64": 50, "192.0.2.0/24": 50, OTHERS: 1}


async def test_a_flood_from_everywhere_is_bounded_and_still_counted(denials, rows, monkeypatch):
    monkeypatch.setattr(module, "MOST", 10)
    for number in range(5_000):
        address = f"10.{number >> 8}.{number & 255}.1"
        denials.add(denied(f"/{number}" * 1000, ANONYMOUS, address))
    assert len(denials._repeated) == 10
    assert len(denials._overflow) == 11
    denials.flush()
    assert len(rows) == 10 + 11
    assert rows.total == 5_000
    assert max(len(str(row.target)) + len(str(row.detail)) for row in rows) < 8_000
    assert rows[-1].actor == OTHERS


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.booleans(), st.booleans())))
def test_the_counts_add_up_to_the_denials(made):
    rows = Rows()

    async def add_all() -> None:
        denials = Denials(rows.append)
        for target, who, anonymous, flushed in made:
            address = f"192.0.{who}.1" if anonymous else None
            denials.add(denied(f"t{target}", f"p{who}", address))
            if flushed:
                denials.flush()
        denials.close()

    kept, module.MOST = module.MOST, 3
    try:
        asyncio.run(add_all())
    finally:
        module.MOST = kept
    assert rows.total == len(made)


async def test_a_timer_runs_only_while_something_is_counted(denials, rows, monkeypatch):
    assert denials._timer is None
    monkeypatch.setattr(module, "WINDOW", 0.01)
    denials.add(denied())
    denials.add(denied())
    async with asyncio.timeout(10):
        while denials._timer is not None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
    assert [row.detail["count"] for row in rows] == [1, 1]
    assert not denials._repeated


async def test_what_is_counted_at_the_end_is_stored_before_the_log_closes(opener):
    store = await opener()
    async with opener.new_log(store) as log:
        for _ in range(7):
            log.denials.add(denied())
    rows = await store.audit.rows(AuditQuery(actor="vi"))
    assert sorted(json.loads(row.detail)["count"] for row in rows) == [1, 6]


async def test_a_secret_in_a_target_is_in_no_row(denials, rows):
    denials.add(denied("/api/v1/x;token=canary-5ecret"))
    assert "canary-5ecret" not in str(rows)


async def test_denials_in_another_agents_name_have_a_row_of_their_own(denials, rows):
    for agent in ("a", "b", "a"):
        denials.add(Denial("call", "boss", "tools/call", "box.rm", "no", "admin", agent_id=agent))
    denials.flush()
    assert [(row.agent_id, row.detail["count"]) for row in rows] == [("a", 1), ("b", 1), ("a", 1)]


async def test_what_is_unknown_is_counted_like_what_is_denied_but_not_with_it(denials, rows):
    for number in range(MOST + 10):
        denials.add(denied(f"t{number}"))
    unknown = Denial("call", "vi", "tools/call", "x", "none", "viewer", decision="unknown")
    denials.add(unknown)
    denials.flush()
    counts = {"DENY": 0, "unknown": 0}
    for row in rows:
        counts[row.decision] += row.detail["count"]
    assert counts == {"DENY": MOST + 10, "unknown": 1}
