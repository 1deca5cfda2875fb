"""What a query of the audit matches: which terms its pages have, which bytes, and which rows.

An agent that reads its own calls sees them masked: filters compare what it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mcp_junction.policy.decision import ALLOW, DENY, NO_GRANT
from mcp_junction.policy.principal import Role
from mcp_junction.store.audit_terms import bits_of, make_terms
from mcp_junction.store.database import Dialect
from mcp_junction.store.records import UNKNOWN, AuditPage, AuditQuery, AuditRow

EXACT: Final = ("kind", "actor", "action", "server_id", "target", "correlation_id", "outcome")
_MASKABLE: Final = ("server_id", "outcome")
_HOLDS: Final = {Dialect.SQLITE: "instr(body, ?) > 0", Dialect.POSTGRES: "position(? IN body) > 0"}
_HAS_BIT: Final = {
    Dialect.SQLITE: "instr(?, substr(correlations, ? % length(correlations) + 1, 1)) > 0",
    Dialect.POSTGRES: "get_bit(correlations, CAST(? AS bigint) % (length(correlations) * 8)) = 1",
}
_WITH_BIT: Final = [bytes(v for v in range(256) if v & 1 << bit) for bit in range(8)]
"""The values of bytes that have a bit."""
_encode = msgspec.json.Encoder().encode


def select_rows(page: AuditPage, asked: AuditQuery, texts: Sequence[bytes] = ()) -> list[AuditRow]:
    """Return the rows of a page that are asked for; ``texts`` are those of the query."""
    agent, rows = asked.own_calls_of, page.rows(texts)
    if agent is not None:
        rows = (mask_hidden(row) for row in rows if is_own_call(row, agent))
    return [row for row in rows if matches(row, asked)]


def terms_asked_for(asked: AuditQuery) -> list[int]:
    """Return the terms that all pages with rows of this query have."""
    if asked.own_calls_of is not None:  # more could show what is masked in its rows
        return make_terms([asked.own_calls_of], (), None, None)
    who = asked.agent or None, asked.actor or None
    return list(dict.fromkeys(make_terms(who, [asked.tool], asked.server_id, asked.decision)))


def texts_asked_for(asked: AuditQuery) -> list[bytes]:
    """Return the texts that the stored form of each row of this query has."""
    masked = () if asked.own_calls_of is None else _MASKABLE
    values = [getattr(asked, column) for column in EXACT if column not in masked]
    values += [asked.agent, asked.own_calls_of, None if masked else asked.tool]
    return [_encode(value.encode("utf-8", "replace").decode()) for value in values if value]


def holds_all(texts: Sequence[bytes], dialect: Dialect) -> str:
    """Make the test that the body of a page has all of these texts, which are its arguments."""
    return " AND ".join([_HOLDS[dialect]] * len(texts)) or "TRUE"


def filter_test(correlation_id: str, dialect: Dialect) -> tuple[str, list[int | bytes]]:
    """Make the test that the filter of a segment may hold an id, and its arguments."""
    bits = bits_of(correlation_id)
    tests = " AND ".join([_HAS_BIT[dialect]] * len(bits))
    test = f"CASE WHEN length(correlations) > 0 THEN {tests} ELSE FALSE END"
    if dialect is Dialect.POSTGRES:
        return test, [*bits]
    return test, [value for bit in bits for value in (_WITH_BIT[bit & 7], bit >> 3)]


def matches(row: AuditRow, asked: AuditQuery) -> bool:
    """Whether a row is one that is asked for."""
    return (
        all(getattr(asked, column) in (None, getattr(row, column)) for column in EXACT)
        and asked.agent in (None, row.acting_agent)
        and asked.tool in (None, row.tool_name, row.target)
        and asked.decision in (None, row.decision)
        and (asked.since is None or row.at >= asked.since)
        and (asked.until is None or row.at < asked.until)
        and (asked.before is None or when(row) < asked.before)
    )


_OF_CALLS: Final = ("call", "intent", "outcome")
_MASKED: Final = (DENY, UNKNOWN)


def is_own_call(row: AuditRow, agent: str) -> bool:
    """Whether a row is about a call of this agent's own, which it may read.

    Of what others did in its name, it may read what its grants allowed: a denial would show it
    what is hidden. Somebody of another role may have the same id.
    """
    if row.kind not in _OF_CALLS or "/" not in row.action:
        return False
    if row.agent_id is None:
        return row.actor == agent and row.role == Role.AGENT
    return row.agent_id == agent and row.decision == ALLOW


def mask_hidden(row: AuditRow) -> AuditRow:
    """Make a row as its agent may read it: what is hidden from it looks like what is not there."""
    if row.decision not in _MASKED or row.attempts or row.rule not in (None, NO_GRANT):
        return row
    detail = msgspec.json.decode(row.detail or "{}")
    for name in ("reason", "unknown"):
        detail.pop(name, None)
    return msgspec.structs.replace(
        row,
        decision=UNKNOWN,
        rule=None,
        outcome="error",
        server_id=None,
        tool_name=None,
        detail=_encode(detail).decode(),
    )


def when(row: AuditRow) -> tuple[float, str, int]:
    """Return by what rows are sorted."""
    return row.at, row.writer, row.seq
