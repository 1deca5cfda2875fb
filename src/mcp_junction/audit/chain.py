"""Chain: entries in, sealed pages out; and the checks that go the other way. Pure.

A page is what one flush stores, a row a line. Its mac is HMAC-SHA-256 over the mac of the page
before it and all of the page; the first page follows the *genesis* of its writer. So an edit breaks
its own page; a deletion or a reordering the page after. Which row was edited, its tag tells: eight
bytes of keyed BLAKE2b over its line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Any, Final

import msgspec

from mcp_junction.audit.redact import params_digest, redacted, redacted_text, summary
from mcp_junction.store.records import AuditPage, AuditRow, SealedPage

TAG: Final = 8
_WIDEST: Final = 512
_DETAIL: Final = 8_192
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

    def extend(self, entries: Sequence[Entry]) -> SealedPage:
        """Seal entries, in their order. One that cannot be read becomes a row that says so."""
        writer, first, tag = self.writer, self.seq + 1, self._seals.tag
        lines, tags, times = [], [], []
        for seq, entry in enumerate(entries, first):
            try:
                row = _row(entry, writer, seq)
                line = _encode(row)
            except Exception:
                log.exception("an audit entry cannot be read")
                row = _row(_unreadable(entry), writer, seq)
                line = _encode(row)
            lines.append(line)
            tags.append(tag(line))
            times.append(row.at)
        body = b"\n".join(lines)
        last = first + len(lines) - 1
        page = AuditPage(writer, first, last, min(times), max(times), b"", b"".join(tags), body)
        page = msgspec.structs.replace(page, mac=self._seals.mac(self.mac, page))
        self.mac, self.seq = page.mac, page.last_seq
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
        return self.digest(before, _encode(place), page.tags, page.body)

    def follows(self, before: bytes, page: AuditPage) -> bool:
        """Whether a page is what its writer wrote after the one with the mac ``before``."""
        return compare_digest(self.mac(before, page), page.mac)

    def tag(self, line: bytes) -> bytes:
        """What tells that a row is as it was written. Its line says where it was written."""
        state = self._tag.copy()
        state.update(line)
        return state.digest()

    def first_bad_row(self, page: AuditPage) -> int | None:
        """The first row of a page that is not what was written there, or is not there."""
        lines = page.lines
        for index, seq in enumerate(range(page.first_seq, page.last_seq + 1)):
            tag = page.tags[index * TAG : (index + 1) * TAG]
            if index >= len(lines) or not compare_digest(self.tag(lines[index]), tag):
                return seq
            if _place(lines[index]) != (page.writer, seq):
                return seq
        return None


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


def _row(entry: Entry, writer: str, seq: int) -> AuditRow:
    latency = entry.latency_ms
    return AuditRow(
        writer,
        seq,
        float(entry.at),
        entry.kind,
        _text(entry.actor) or "",
        entry.role,
        _text(entry.action) or "",
        _text(entry.correlation_id),
        entry.server_id,
        _text(entry.target),
        entry.decision,
        entry.cached,
        params_digest(entry.params),
        entry.outcome,
        entry.delivery,
        entry.attempts,
        None if latency is None else float(latency),
        _clean(summary(entry.result)),
        _detail(entry.detail),
        entry.closes,
    )


def _text(text: str | None) -> str | None:
    """A text that somebody else chose: bounded, and such that every database takes it."""
    if text is None:
        return None
    if len(text) > _WIDEST:
        digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        text = f"{text[:_WIDEST]}…{digest}"
    return _clean(text)


def _clean(text: str | None) -> str | None:
    """NUL is no text to PostgreSQL, a lone surrogate is none to UTF-8."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _detail(detail: dict[str, Any] | None) -> str | None:
    if detail is None:
        return None
    text = _encode(redacted(detail)).decode()
    return text if len(text) <= _DETAIL else _encode({"cut": redacted_text(text[:2_000])}).decode()
