"""Chain: turns audit entries into pages that are chained by MACs; Seals: makes and checks the MACs.

A page is what one flush stores, a row per line. A row has a tag: 16 bytes of keyed BLAKE2b over its
line and all lines before it in the page. The page's MAC is HMAC-SHA-256 over the MAC of the page
before it, its place and its last tag; the first page follows the *genesis* of its writer. So an
edit shows in the tag of its row; a deletion or a reordering shows in the page after.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from mcp_junction.errors import StoreUnavailable
from mcp_junction.redaction.connections import mask_url
from mcp_junction.redaction.detect import Memo, names_secret
from mcp_junction.redaction.known import KNOWN
from mcp_junction.redaction.payloads import (
    clean,
    digest_params,
    redact_named_values,
    redact_value,
    summarize,
)
from mcp_junction.store.audit import IntentCheck
from mcp_junction.store.audit_terms import SealedPage, SegmentBuilder, TermKey, needs_filter
from mcp_junction.store.records import AuditPage

TAG: Final = 16
_WIDEST: Final = 512
_DETAIL: Final = 8_192
_encode = encode_row = msgspec.json.Encoder().encode
"""Encodes the fields of an AuditRow, in their order."""
ROWS_A_TURN: Final = 32
_TURNS: Final = 16
"""A page is encoded in at most so many turns of the loop, with more rows a turn if need be."""
log = logging.getLogger("mcp_junction.audit")


class IntentWaiter(NamedTuple):
    """Somebody who waits until an entry is durable: its place, a future and what must hold."""

    place: int
    future: asyncio.Future[str]
    check: IntentCheck | None = None


EncodedRow = tuple[bytes, TermKey, str | None]
"""The line of a row; what the row is found by, its values as they were written; and its correlation
id, if the time in that does not lead to the row."""


class Recordable(Protocol):
    """Something to be recorded, which becomes a row when its page is made."""

    @property
    def at(self) -> float: ...

    @property
    def closes(self) -> str | None:
        """The reference of the intent that it is the outcome of."""
        ...

    def encode(self, writer: str, seq: int) -> EncodedRow:
        """Encode it as an AuditRow. May raise anything."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def actor(self) -> str: ...


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """Something to be recorded. Cheap to make: it is encoded, redacted and hashed later.

    ``params`` and ``result`` are raw JSON and never stored as such. ``detail`` is stored, redacted.
    """

    kind: str
    actor: str
    action: str
    at: float
    role: str = ""
    correlation_id: str | None = None
    server_id: str | None = None
    target: str | None = None
    decision: str | None = None
    cached: bool = False
    params: bytes | None = None
    outcome: str | None = None
    delivery: str | None = None
    attempts: int = 0
    latency_ms: float | None = None
    result: bytes | None = None
    detail: dict[str, Any] | None = None
    closes: str | None = None
    agent_id: str | None = None
    """The agent in whose name it was done, where that is not the actor."""
    tool_name: str | None = None
    rule: str | None = None
    ticket_id: str | None = None
    task_id: str | None = None

    def encode(self, writer: str, seq: int) -> EncodedRow:
        """Encode it as an AuditRow, without making one: that would double the cost."""
        names, target, correlation, detail = NAMES, self.target, self.correlation_id, self.detail
        line = encode_row(
            (
                writer,
                seq,
                self.at,
                self.kind,
                names[self.actor],
                self.role,
                names[self.action],
                None if correlation is None else clean_text(correlation),
                self.server_id,
                None if target is None else names[target],
                self.decision,
                self.cached,
                digest_params(self.params),
                self.outcome,
                self.delivery,
                self.attempts,
                self.latency_ms,
                summarize(self.result, self.server_id),
                None if detail is None else _encode_detail(detail),
                self.closes,
                None if self.agent_id is None else names[self.agent_id],
                None if self.tool_name is None else names[self.tool_name],
                self.rule,
                None if self.ticket_id is None else clean_text(self.ticket_id),
                None if self.task_id is None else clean_text(self.task_id),
            )
        )
        agent, tool = self.agent_id, self.tool_name
        key = (
            names[self.actor],
            None if agent is None else names[agent],
            self.server_id,
            None if tool is None else names[tool],
            None if tool is None or target is None else names[target],
            self.decision,
        )
        if correlation is None or not needs_filter(correlation, self.at):
            return line, key, None
        return line, key, clean_text(correlation)


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

    Seal it before beginning another. The page is made once, however often storing it is tried. An
    entry that cannot be encoded becomes a row that says so.
    """

    __slots__ = (
        "_chain", "_correlations", "_entries", "_first", "_keys", "_lines", "_sealed", "_tag",
        "_tags", "_times", "durable", "waiters",
    )  # fmt: skip

    def __init__(
        self, chain: Chain, entries: Sequence[Recordable], waiters: Sequence[IntentWaiter] = ()
    ) -> None:
        self._chain = chain
        self._entries = entries
        self._first = chain.seq + 1
        self._lines: list[bytes] = []
        self._tags: list[bytes] = []
        self._times: list[float] = []
        self._keys: set[TermKey] = set()
        self._correlations: list[str] = []
        self._tag = chain.seals.new_tag_hash()
        self._sealed: SealedPage | None = None
        self.waiters = waiters
        self.durable = bool(waiters)

    def __len__(self) -> int:
        return len(self._entries)

    async def encode(self) -> None:
        """Encode the rows on the loop, a few a turn.

        A thread that does so keeps the loop from the interpreter's lock for up to its switch
        interval of milliseconds, each time that the loop has released it.
        """
        if KNOWN.is_pending:  # rare, and longer than a turn may take
            await asyncio.to_thread(KNOWN.process_pending)
        rows = max(ROWS_A_TURN, len(self._entries) // _TURNS)
        while self._encode_rows(rows):  # noqa: ASYNC110 - other tasks run in between
            await asyncio.sleep(0)

    def seal(self) -> SealedPage:
        """Encode the rows that are left, and put the page at the end of the chain."""
        if self._sealed is None:
            self._encode_rows(len(self._entries))
            chain, first, times = self._chain, self._first, self._times
            page = AuditPage(
                chain.writer,
                first,
                first + len(self._entries) - 1,
                float(min(times)),
                float(max(times)),
                b"",
                b"".join(self._tags),
                b"\n".join(self._lines),
            )
            page = msgspec.structs.replace(page, mac=chain.seals.mac(chain.mac, page))
            chain.mac, chain.seq = page.mac, page.last_seq
            segment = chain.index.add(page, self._keys, self._correlations)
            intents = _find_intents(self._entries, chain.writer, first)
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
        writer, lines, tag, keys = self._chain.writer, self._lines, self._tag, self._keys
        times, tags, done = self._times, self._tags, len(lines)
        last_key: TermKey | None = None
        for seq, given in enumerate(self._entries[done : done + count], self._first + done):
            at = given.at
            try:
                line, key, correlation = given.encode(writer, seq)
            except Exception:  # whatever a caller put into it: the row must be written
                log.exception("an audit entry cannot be read")
                entry = _unreadable(given)
                at = entry.at
                line, key, correlation = entry.encode(writer, seq)
            lines.append(line)
            times.append(at)
            if key is not last_key:  # as it is in a row of calls of one caller
                keys.add(key)
                last_key = key
            if correlation is not None:
                self._correlations.append(correlation)
            tag.update(line)
            tags.append(tag.digest())
        return len(lines) < len(self._entries)


def refuse_each(waiters: Sequence[IntentWaiter], error: StoreUnavailable) -> None:
    """Raise an error in these waiters."""
    for _, future, _ in waiters:
        if not future.done():
            future.set_exception(error)


class Seals:
    """Makes and checks the MACs of pages and the tags of rows with one key.

    HMAC by hand: the hash states that depend on the key alone are computed once, then copied.
    """

    __slots__ = ("_inner", "_outer", "_tag")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))
        self._tag = blake2b(key=key, digest_size=TAG, person=b"junction row")

    def digest(self, *parts: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        for part in parts:
            inner.update(part)
        outer.update(inner.digest())
        return outer.digest()

    def genesis(self, writer: str) -> bytes:
        """Return the MAC that the first page of a writer follows."""
        return self.digest(b"genesis/" + writer.encode())

    def mac(self, before: bytes, page: AuditPage) -> bytes:
        place = (page.writer, page.first_seq, page.last_seq, page.first_at, page.last_at)
        return self.digest(before, _encode(place), page.tags[-TAG:])

    def new_tag_hash(self) -> blake2b:
        """Return the hash from which the tags of a page's rows are taken, before its first row."""
        return self._tag.copy()

    def tags(self, lines: Sequence[bytes]) -> bytes:
        """Make the tags of a page's rows: each covers its line and all lines before it."""
        state = self.new_tag_hash()
        tags = []
        for line in lines:
            state.update(line)
            tags.append(state.digest())
        return b"".join(tags)

    def is_next(self, before: bytes, page: AuditPage) -> bool:
        """Whether a page is unchanged and follows the one with the MAC ``before``."""
        if not compare_digest(self.mac(before, page), page.mac):
            return False
        return compare_digest(self.tags(page.lines), page.tags)

    def is_intact(self, page: AuditPage) -> bool:
        """Whether the rows of a page are unchanged since they were written with this key."""
        return self.first_bad_row(page) is None

    def first_bad_row(self, page: AuditPage) -> int | None:
        """Find the first row of a page that was changed, moved or removed."""
        lines = page.lines
        tags = self.tags(lines)
        for index, seq in enumerate(range(page.first_seq, page.last_seq + 1)):
            here = slice(index * TAG, (index + 1) * TAG)
            if index >= len(lines) or not compare_digest(tags[here], page.tags[here]):
                return seq
            if msgspec.json.decode(lines[index])[:2] != [page.writer, seq]:
                return seq
        return None if len(tags) == len(page.tags) else page.last_seq + 1


def _find_intents(
    entries: Sequence[Recordable], writer: str, first: int
) -> tuple[list[int], list[tuple[str, int]]]:
    """Find the intents that these entries open, and the earlier ones that they close."""
    opens: dict[tuple[str, int], None] = {}
    closes = []
    for seq, entry in enumerate(entries, first):
        if entry.kind == "intent":
            opens[writer, seq] = None
        elif entry.closes is not None:
            whose, _, which = entry.closes.rpartition(":")
            intent = (whose, int(which))
            if intent in opens:
                del opens[intent]
            else:
                closes.append(intent)
    return [seq for _, seq in opens], closes


def _unreadable(entry: Recordable) -> Entry:
    """Make the entry that is stored in the place of one that cannot be encoded."""
    detail = {"unreadable": True, "actor": ascii(entry.actor)[:100]}
    return Entry(kind=str(entry.kind), actor="?", action="?", at=time.time(), detail=detail)


def clean_text(text: str) -> str:
    """Redact and shorten a text that a client chose, and make it storable."""
    text = KNOWN.redact(text)
    if "://" in text and ("@" in text or names_secret(text)):
        text = mask_url(text)
    if len(text) > _WIDEST:
        digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        text = f"{text[:_WIDEST]}…{digest}"
    return clean(text)


def _encode_detail(detail: dict[str, Any]) -> str:
    text = _encode(redact_value(detail)).decode()
    if len(text) <= _DETAIL:
        return text
    return _encode({"cut": redact_named_values(text[:2_000])}).decode()


NAMES: Final = Memo(clean_text)
"""Cleans names that occur again and again."""
