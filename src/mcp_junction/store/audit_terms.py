"""Terms and Segments: what rows of the audit are found by, and what a query of the audit matches.

A Segment has the terms of a stretch of pages, as hashes. A term is an agent, a server, a tool or a
decision that is not the usual one. Terms lead to pages, whose rows are then read and compared: a
hash that two terms share costs a page, and no more. Correlation ids would be a term of each row; so
those of our own are found by the time in them, and others by a Bloom filter of their segment. An
agent that reads its own calls sees them masked: filters compare what it sees. Pure; the tables are
in ``audit_index.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from mcp_junction.policy.decision import ALLOW, DENY, NO_GRANT
from mcp_junction.policy.principal import Role
from mcp_junction.protocol.correlation import made_at
from mcp_junction.store.audit_records import UNKNOWN, AuditPage, AuditQuery, AuditRow
from mcp_junction.store.database import Dialect

MAX_PAGES: Final = 256
"""Pages of a segment: their numbers in it are bytes."""
MAX_ROWS: Final = 10_000
"""Rows of a segment, about: those of the last page come on top."""
PROMPT: Final = 15.0
"""Seconds after its time within which an id of our own is in its row: it needs no filter."""
_FILTER_BITS: Final = 1 << 18
_BITS_PER_ID: Final = 24
_SMALLEST: Final = 64

TermKey = tuple[str, str | None, str | None, str | None, str | None, str | None]
"""What a row is found by: actor, acting agent, server id, tool, target, decision. A target that is
no tool may be whatever a client wrote: then it is None."""


def key_of(row: AuditRow) -> TermKey:
    """Return what a row is found by."""
    target = None if row.tool_name is None else row.target
    return row.actor, row.agent_id, row.server_id, row.tool_name, target, row.decision


@lru_cache(maxsize=8_192)
def terms_of(key: TermKey) -> tuple[int, ...]:
    """Return the terms of rows with this key."""
    actor, agent, server, tool, target, decision = key
    return tuple(make_terms((actor, agent), (tool, target), server, decision))


def make_terms(
    who: Iterable[str | None],
    tools: Iterable[str | None],
    server_id: str | None,
    decision: str | None,
) -> list[int]:
    """Return the terms of what is not None.

    Actors and acting agents, who often are the same, have terms of one kind; so have the server's
    own name for a tool and its canonical one. ALLOW, which is nearly everywhere, has none.
    """
    named = [("who", name) for name in who] + [("tool", name) for name in tools]
    named += [("server", server_id), ("decision", None if decision == ALLOW else decision)]
    return [_hash(kind, value) for kind, value in named if value is not None]


def _hash(kind: str, value: str) -> int:
    """Hash a term to a signed integer of 64 bits."""
    text = f"{kind}\0{value}".encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


# -- correlation ids


def needs_filter(correlation_id: str, at: float) -> bool:
    """Whether the time in an id does not lead to the row of this time that has it."""
    made = made_at(correlation_id)
    return made is None or not -1.0 <= at - made <= PROMPT


class CorrelationFilter:
    """A Bloom filter that is being filled."""

    __slots__ = ("_bits", "_count")

    def __init__(self) -> None:
        self._bits = bytearray(_FILTER_BITS // 8)
        self._count = 0

    def add(self, correlation_id: str) -> None:
        bits = self._bits
        for place in bits_of(correlation_id):
            bits[place >> 3] |= 1 << (place & 7)
        self._count += 1

    def encode(self) -> bytes:
        """Return it, folded to the size that its ids need; nothing if there are none."""
        if not self._count:
            return b""
        bits, size = int.from_bytes(self._bits, "little"), _FILTER_BITS
        while size > _SMALLEST and size // 2 >= self._count * _BITS_PER_ID:
            size //= 2
            bits = bits >> size | bits & (1 << size) - 1
        return bits.to_bytes(size // 8, "little")


def may_hold(encoded: bytes, correlation_id: str) -> bool:
    """Whether a filter may have been given this id: no is certain, yes is rarely wrong."""
    if not encoded:
        return False
    places = bits_of(correlation_id, len(encoded) * 8)
    return all(encoded[place >> 3] & 1 << (place & 7) for place in places)


def bits_of(correlation_id: str, size: int = _FILTER_BITS) -> Sequence[int]:
    """Return the bits of an id. ``size`` is a power of two: in a smaller filter they are folded."""
    start = crc32(correlation_id.encode("utf-8", "replace"))
    step = start >> 16 | 1
    mask = size - 1
    return [(start + number * step) & mask for number in range(4)]


# -- segments


class PageSpot(NamedTuple):
    """Where a page is: the time of its youngest row comes first, so that spots sort by it."""

    last_at: float
    writer: str
    last_seq: int
    first_at: float
    rows: int


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The index of a stretch of one writer's chain."""

    writer: str
    first_seq: int
    last_seq: int
    first_at: float
    last_at: float
    pages: bytes
    """The spots of its pages, without the writer."""
    terms: dict[int, bytes]
    """For each term, the numbers of the pages in this segment that have it."""
    correlations: bytes

    @property
    def term_list(self) -> bytes:
        return b"".join(term.to_bytes(8, "big", signed=True) for term in self.terms)


def read_term_list(encoded: bytes) -> list[int]:
    """Read the terms of a segment."""
    parts = (encoded[place : place + 8] for place in range(0, len(encoded), 8))
    return [int.from_bytes(part, "big", signed=True) for part in parts]


_encode_spots = msgspec.msgpack.Encoder().encode
_decode_spots = msgspec.msgpack.Decoder(list[tuple[int, float, float, int]]).decode


def read_spots(writer: str, encoded: bytes) -> list[PageSpot]:
    """Read the spots of a segment's pages, in the order of its numbers."""
    return [
        PageSpot(last_at, writer, last_seq, first_at, rows)
        for last_seq, first_at, last_at, rows in _decode_spots(encoded)
    ]


class SegmentBuilder:
    """Collects the terms of one writer's pages until they make a segment."""

    __slots__ = ("_filter", "_pages", "_rows", "_terms", "writer")

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self._begin()

    def _begin(self) -> None:
        self._rows = 0
        self._pages: list[tuple[int, float, float, int]] = []
        self._terms: dict[int, bytearray] = {}
        self._filter = CorrelationFilter()

    def add(
        self, page: AuditPage, keys: Iterable[TermKey], correlations: Iterable[str]
    ) -> Segment | None:
        """Add the next page of the chain; return the segment that it completes, if it does."""
        number, rows = len(self._pages), page.last_seq - page.first_seq + 1
        self._pages.append((page.last_seq, page.first_at, page.last_at, rows))
        self._rows += rows
        terms = self._terms
        for term in {term for key in keys for term in terms_of(key)}:
            terms.setdefault(term, bytearray()).append(number)
        for correlation in correlations:
            self._filter.add(correlation)
        is_full = len(self._pages) >= MAX_PAGES or self._rows >= MAX_ROWS
        return self.close() if is_full else None

    def add_stored(self, page: AuditPage) -> Segment | None:
        """Add a page that was read from the store."""
        keys: set[TermKey] = set()
        correlations = []
        for row in page.rows():
            keys.add(key_of(row))
            if row.correlation_id is not None and needs_filter(row.correlation_id, row.at):
                correlations.append(row.correlation_id)
        return self.add(page, keys, correlations)

    def close(self) -> Segment | None:
        """Return the segment of what was collected since the last one, if anything was."""
        if not self._pages:
            return None
        through, _, _, rows = self._pages[0]
        made = Segment(
            self.writer,
            through - rows + 1,
            self._pages[-1][0],
            min(page[1] for page in self._pages),
            max(page[2] for page in self._pages),
            _encode_spots(self._pages),
            {term: bytes(numbers) for term, numbers in self._terms.items()},
            self._filter.encode(),
        )
        self._begin()
        return made


class SealedPage(msgspec.Struct, frozen=True, gc=False):
    """A new page: the intents that it opens and closes, and the segment that it completes."""

    page: AuditPage
    opens: Sequence[int]
    closes: Sequence[tuple[str, int]]
    segment: Segment | None = None


# -- what a query matches

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
