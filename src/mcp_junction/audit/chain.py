"""Chain: turns audit entries into pages that are chained by MACs (``checkpoints.py``)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_junction.audit.checkpoints import Seals
from mcp_junction.audit.entries import OPENS, Entry, Recordable
from mcp_junction.errors import StoreUnavailable
from mcp_junction.redaction.payloads import may_show_secret
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.audit import IntentCheck
from mcp_junction.store.audit_records import AuditPage
from mcp_junction.store.audit_terms import SealedPage, SegmentBuilder, TermKey

ROWS_A_TURN: Final = 32
_TURNS: Final = 16
"""A page is encoded in at most so many turns of the loop, with more rows a turn if need be."""
log = logging.getLogger("mcp_junction.audit")


class IntentWaiter(NamedTuple):
    """Somebody who waits until an entry is durable: its place, a future and what must hold."""

    place: int
    future: asyncio.Future[str]
    check: IntentCheck | None = None


class Chain:
    """The end of one writer's chain."""

    __slots__ = ("index", "mac", "seals", "seq", "writer")

    def __init__(self, key: bytes, writer: str) -> None:
        self.seals = Seals(key)
        self.writer = writer
        self.seq = 0
        self.mac = self.seals.genesis(writer)
        self.index = SegmentBuilder(writer)

    def extend(self, entries: Sequence[Recordable]) -> SealedPage:
        """Make the next page of these entries at once."""
        return AuditBatch(self, entries).seal()


class AuditBatch:
    """Entries that become the next page of a chain, and the futures that wait for it.

    Entries can be added until it is sealed; seal it before beginning another. The page is made
    once, however often storing it is tried. An entry that cannot be encoded becomes a row that
    says so.

    What is encoded is joined, and its entries let go of, a few rows at a time: to free those of a
    thousand rows at once would hold calls up for half a millisecond.
    """

    __slots__ = (
        "_chain", "_correlations", "_encoded", "_entries", "_first", "_first_at", "_intents",
        "_keys", "_last_at", "_lines", "_places", "_sealed", "_tag", "_tags", "durable", "waiters",
    )  # fmt: skip

    def __init__(self, chain: Chain, entries: Iterable[Recordable] = ()) -> None:
        self._chain = chain
        self._entries = list(entries)
        """Those that are not encoded yet."""
        self._encoded = 0
        """How many are."""
        self._first = chain.seq + 1
        self._lines: list[bytes] = []
        """The lines of rows that were encoded together, joined; so are their tags."""
        self._tags: list[bytes] = []
        self._first_at, self._last_at = math.inf, -math.inf
        self._keys: set[TermKey] = set()
        self._places: dict[object, int] = {}
        """Where the first of the rows is that share something, by that."""
        self._correlations: list[str] = []
        self._intents: list[tuple[int, str]] = []
        """The rows that open or close an intent."""
        self._tag = chain.seals.new_tag_hash()
        self._sealed: SealedPage | None = None
        self.waiters: Sequence[IntentWaiter] = ()
        self.durable = False

    def __len__(self) -> int:
        return self._encoded + len(self._entries)

    def add(self, entries: Iterable[Recordable], waiters: Sequence[IntentWaiter] = ()) -> None:
        """Add entries; ``waiters`` wait for rows of this page, by their place in it."""
        self._entries += entries
        self.waiters = (*self.waiters, *waiters)
        self.durable = self.durable or bool(waiters)

    def encode_now(self) -> None:
        """Encode the rows that are not encoded yet in one go: a few."""
        self._encode_rows(len(self._entries))

    async def encode(self) -> None:
        """Encode the remaining rows, on the loop, a few a turn.

        A thread that does so keeps the loop from the interpreter's lock for up to its switch
        interval of milliseconds, each time that the loop has released it.
        """
        if KNOWN.is_pending:  # rare, and longer than a turn may take
            await asyncio.to_thread(KNOWN.process_pending)
        rows = max(ROWS_A_TURN, len(self._entries) // _TURNS)
        while self._encode_rows(rows):  # noqa: ASYNC110 - other tasks run in between
            await asyncio.sleep(0)

    def seal(self) -> SealedPage:
        """Encode the rows that are left, and put the page at the end of the chain.

        For 1,200 rows that are encoded it takes 0.2 ms: on the loop, like encoding them, it holds
        calls up for less than a thread does that wants the interpreter's lock for as long.
        """
        if self._sealed is None:
            self._encode_rows(len(self._entries))
            chain, first = self._chain, self._first
            page = AuditPage(
                chain.writer,
                first,
                first + self._encoded - 1,
                float(self._first_at),
                float(self._last_at),
                b"",
                b"".join(self._tags),
                b"\n".join(self._lines),
            )
            page = msgspec.structs.replace(page, mac=chain.seals.mac(chain.mac, page))
            chain.mac, chain.seq = page.mac, page.last_seq
            segment = chain.index.add(page, self._keys, self._correlations)
            intents = _find_intents(self._intents, chain.writer)
            self._sealed = SealedPage(page, *intents, segment)
        return self._sealed

    @property
    def checks(self) -> list[IntentCheck]:
        """What must hold for the intents that somebody still waits for."""
        return [waiter.check for waiter in self.waiters if waiter.check is not None]

    def settle(self) -> None:
        """Give each waiter the reference of its row."""
        for index, future, _ in self.waiters:
            if not future.done():
                future.set_result(f"{self._chain.writer}:{self._first + index}")
        self.waiters = ()

    def refuse(self, error: StoreUnavailable) -> None:
        """Raise an error in all waiters: their entries are not on record."""
        refuse_each(self.waiters, error)
        self.waiters = ()

    def _encode_rows(self, count: int) -> bool:
        """Encode the next ``count`` entries; return whether there are more."""
        entries = self._entries[:count]
        if not entries:
            return False
        del self._entries[:count]
        writer, tag, keys, places = self._chain.writer, self._tag, self._keys, self._places
        first, lines, tags, times = self._first, [], [], []
        is_harmless = _are_harmless(entries)
        for seq, given in enumerate(entries, first + self._encoded):
            at, shared = given.at, given.shared
            like = None if shared is None else places.get(shared)
            try:
                line, key, correlation, intent = given.encode(writer, seq, is_harmless, like)
            except Exception:  # whatever a caller put into it: the row must be written
                log.exception("an audit entry cannot be read")
                entry = _unreadable(given)
                at, shared, like = entry.at, None, None
                line, key, correlation, intent = entry.encode(writer, seq)
            lines.append(line)
            times.append(at)
            if like is None:
                keys.add(key)
                if shared is not None:
                    places[shared] = seq - first
            if correlation is not None:
                self._correlations.append(correlation)
            if intent is not None:
                self._intents.append((seq, intent))
            tag.update(line)
            tags.append(tag.digest())
        self._encoded += len(entries)
        self._lines.append(b"\n".join(lines))
        self._tags.append(b"".join(tags))
        self._first_at = min(self._first_at, *times)
        self._last_at = max(self._last_at, *times)
        return bool(self._entries)


def refuse_each(waiters: Sequence[IntentWaiter], error: StoreUnavailable) -> None:
    """Raise an error in these waiters."""
    for _, future, _ in waiters:
        if not future.done():
            future.set_exception(error)


def _are_harmless(entries: Sequence[Recordable]) -> bool:
    """Whether no result of these entries has to be redacted."""
    try:
        results = [entry.result for entry in entries if entry.result is not None]
        return not may_show_secret(results, (entry.server_id for entry in entries))
    except Exception:  # noqa: BLE001 - whatever a caller put into it: the rows are looked at one by one
        return False


def _find_intents(
    rows: Sequence[tuple[int, str]], writer: str
) -> tuple[list[int], list[tuple[str, int]]]:
    """Find the intents that these rows open, and the earlier ones that they close."""
    opens: dict[tuple[str, int], None] = {}
    closes = []
    for seq, reference in rows:
        if reference == OPENS:
            opens[writer, seq] = None
            continue
        whose, _, which = reference.rpartition(":")
        intent = (whose, int(which))
        if intent in opens:
            del opens[intent]
        else:
            closes.append(intent)
    return [seq for _, seq in opens], closes


def _unreadable(entry: Recordable) -> Entry:
    """Make the entry that is stored in the place of one that cannot be encoded."""
    detail = {"unreadable": True, "actor": ascii(entry.actor)[:100]}
    kind, closes = str(entry.kind), entry.closes if isinstance(entry.closes, str) else None
    return Entry(kind=kind, actor="?", action="?", at=time.time(), detail=detail, closes=closes)
