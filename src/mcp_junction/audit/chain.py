"""Chain: entries in, sealed pages out; and the checks that go the other way. Pure.

A page is what one flush stores, a row a line. A row has a tag: sixteen bytes of keyed BLAKE2b over
its line and all lines before it in the page. The page's mac is HMAC-SHA-256 over the mac of the
page before it, its place and its last tag; the first page follows the *genesis* of its writer. So
an edit shows in the tag of its row, which names it; a deletion or a reordering in the page after.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Any, Final

import msgspec

from mcp_junction.protocol.envelope import is_tool_error
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
from mcp_junction.store.records import AuditPage, SealedPage
from mcp_junction.telemetry.events import OutcomeName

TAG: Final = 16
_WIDEST: Final = 512
_DETAIL: Final = 8_192
_TOOL_ERROR: Final = OutcomeName.TOOL_ERROR.value
_encode = msgspec.json.Encoder().encode
log = logging.getLogger("mcp_junction.audit")


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """What a caller tells the audit. Cheap to make: nothing is encoded, hashed or cut yet.

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
    is_tool_result: bool = False
    """Whether ``result`` is the whole result of a tool, to be read for its own error."""
    delivery: str | None = None
    attempts: int = 0
    latency_ms: float | None = None
    result: bytes | None = None
    detail: dict[str, Any] | None = None
    closes: str | None = None


class Chain:
    """The end of one writer's chain, and the only one who may extend it."""

    __slots__ = ("_seals", "mac", "seq", "writer")

    def __init__(self, key: bytes, writer: str) -> None:
        self._seals = Seals(key)
        self.writer = writer
        self.seq = 0
        self.mac = self._seals.genesis(writer)

    def begin(self, entries: Sequence[Entry]) -> PageBuilder:
        """Begin the next page with these entries; build it before beginning another."""
        return PageBuilder(self, self._seals, entries)

    def extend(self, entries: Sequence[Entry]) -> SealedPage:
        """Make the next page of these entries at once."""
        return self.begin(entries).build()


class PageBuilder:
    """Builds one page, some rows at a time, so that other tasks can run in between.

    An entry that cannot be read becomes a row that says so.
    """

    __slots__ = ("_chain", "_entries", "_lines", "_seals", "_tag", "_tags", "_times")

    def __init__(self, chain: Chain, seals: Seals, entries: Sequence[Entry]) -> None:
        self._chain = chain
        self._seals = seals
        self._entries = entries
        self._lines: list[bytes] = []
        self._tags: list[bytes] = []
        self._times: list[float] = []
        self._tag = seals.new_tag_hash()

    def add_rows(self, count: int) -> bool:
        """Encode the next ``count`` entries; returns whether there are more."""
        writer, lines, tag = self._chain.writer, self._lines, self._tag
        done = len(lines)
        first = self._chain.seq + 1 + done
        for seq, entry in enumerate(self._entries[done : done + count], first):
            try:
                line = _line(entry, writer, seq)
            except Exception:
                log.exception("an audit entry cannot be read")
                entry = _unreadable(entry)
                line = _line(entry, writer, seq)
            lines.append(line)
            self._times.append(entry.at)
            tag.update(line)
            self._tags.append(tag.digest())
        return len(lines) < len(self._entries)

    def build(self) -> SealedPage:
        """Add the rows that are left, and put the page at the end of the chain."""
        self.add_rows(len(self._entries))
        chain, entries = self._chain, self._entries
        writer, first = chain.writer, chain.seq + 1
        last = chain.seq + len(entries)
        first_at, last_at = float(min(self._times)), float(max(self._times))
        tags, body = b"".join(self._tags), b"\n".join(self._lines)
        page = AuditPage(writer, first, last, first_at, last_at, b"", tags, body)
        page = msgspec.structs.replace(page, mac=self._seals.mac(chain.mac, page))
        chain.mac, chain.seq = page.mac, page.last_seq
        return SealedPage(page, *_intents(entries, writer, first))


class Seals:
    """Macs of pages and tags of rows with one key, made ready once: each is a copy of a state."""

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
        """What the first page of a writer follows."""
        return self.digest(b"genesis/" + writer.encode())

    def mac(self, before: bytes, page: AuditPage) -> bytes:
        place = (page.writer, page.first_seq, page.last_seq, page.first_at, page.last_at)
        return self.digest(before, _encode(place), page.tags[-TAG:])

    def new_tag_hash(self) -> blake2b:
        """Return the hash from which the tags of a page's rows are taken, before its first row."""
        return self._tag.copy()

    def tags(self, lines: Sequence[bytes]) -> bytes:
        """What tells of each row of a page that it, and those before it, are as they were written.

        Lines say where they were written.
        """
        state = self.new_tag_hash()
        tags = []
        for line in lines:
            state.update(line)
            tags.append(state.digest())
        return b"".join(tags)

    def follows(self, before: bytes, page: AuditPage) -> bool:
        """Whether a page is what its writer wrote after the one with the mac ``before``."""
        if not compare_digest(self.mac(before, page), page.mac):
            return False
        return compare_digest(self.tags(page.lines), page.tags)

    def verifies(self, page: AuditPage) -> bool:
        """Whether a page is as its writer wrote it, with this key."""
        return self.first_bad_row(page) is None

    def first_bad_row(self, page: AuditPage) -> int | None:
        """The first row of a page that is not what was written there, or is not there."""
        lines = page.lines
        tags = self.tags(lines)
        for index, seq in enumerate(range(page.first_seq, page.last_seq + 1)):
            here = slice(index * TAG, (index + 1) * TAG)
            if index >= len(lines) or not compare_digest(tags[here], page.tags[here]):
                return seq
            if _place(lines[index]) != (page.writer, seq):
                return seq
        return None if len(tags) == len(page.tags) else page.last_seq + 1


def _place(line: bytes) -> tuple[str, int]:
    writer, seq = msgspec.json.decode(line)[:2]
    return writer, seq


def _intents(
    entries: Sequence[Entry], writer: str, first: int
) -> tuple[list[int], list[tuple[str, int]]]:
    """The intents that are open after these entries, and those that were and are not."""
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


def _unreadable(entry: Entry) -> Entry:
    """What is left of an entry whose maker gave us something that is no JSON or no text."""
    detail = {"unreadable": True, "actor": ascii(entry.actor)[:100]}
    return Entry(kind=str(entry.kind), actor="?", action="?", at=time.time(), detail=detail)


def _line(entry: Entry, writer: str, seq: int) -> bytes:
    """An AuditRow, encoded. To make one first would cost as much as to encode it."""
    names, target, correlation, detail = _NAMES, entry.target, entry.correlation_id, entry.detail
    return _encode(
        (
            writer,
            seq,
            entry.at,
            entry.kind,
            names[entry.actor],
            entry.role,
            names[entry.action],
            None if correlation is None else _text(correlation),
            entry.server_id,
            None if target is None else names[target],
            entry.decision,
            entry.cached,
            digest_params(entry.params),
            entry.outcome if not entry.is_tool_result else _read_outcome(entry),
            entry.delivery,
            entry.attempts,
            entry.latency_ms,
            summarize(entry.result, entry.server_id),
            None if detail is None else _detail(detail),
            entry.closes,
        )
    )


def _read_outcome(entry: Entry) -> str | None:
    """Return the outcome of a tool call: ``tool_error`` when its result says so."""
    result = entry.result
    return _TOOL_ERROR if result is not None and is_tool_error(result) else entry.outcome


def _text(text: str) -> str:
    """A text that somebody else chose: without secrets, bounded, as every database takes it."""
    text = KNOWN.redact(text)
    if "://" in text and ("@" in text or names_secret(text)):
        text = mask_url(text)
    if len(text) > _WIDEST:
        digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        text = f"{text[:_WIDEST]}…{digest}"
    return clean(text)


def _detail(detail: dict[str, Any]) -> str:
    text = _encode(redact_value(detail)).decode()
    if len(text) <= _DETAIL:
        return text
    return _encode({"cut": redact_named_values(text[:2_000])}).decode()


_NAMES: Final = Memo(_text)
