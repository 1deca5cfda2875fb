"""Chain: entries in, sealed rows out; and the check that goes the other way. Pure.

The mac of a row is HMAC-SHA-256 over the mac before it and the row's encoding. The first row
follows the *genesis* of its writer. So an edit breaks its own row; a deletion or a reordering the
row after.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final

import msgspec

from mcp_junction.audit.redact import params_digest, redacted, redacted_text, summary
from mcp_junction.store.records import AuditRow, SealedRow

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

    __slots__ = ("_macs", "mac", "seq", "writer")

    def __init__(self, key: bytes, writer: str) -> None:
        self._macs = Macs(key)
        self.writer = writer
        self.seq = 0
        self.mac = self._macs.genesis(writer)

    def extend(self, entries: Iterable[Entry]) -> list[SealedRow]:
        """Seal entries, in their order. One that cannot be read becomes a row that says so."""
        sealed = []
        for entry in entries:
            try:
                row = _row(entry, self.writer, self.seq + 1)
                after = self._macs.of(self.mac, row)
            except Exception:
                log.exception("an audit entry cannot be read")
                row = _row(_unreadable(entry), self.writer, self.seq + 1)
                after = self._macs.of(self.mac, row)
            self.mac, self.seq = after, row.seq
            sealed.append(SealedRow(row, after))
        return sealed


class Macs:
    """HMAC-SHA-256 with one key, made ready once: a third of the cost of making it anew."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, message: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()

    def genesis(self, writer: str) -> bytes:
        """What the first row of a writer follows."""
        return self.digest(b"genesis/" + writer.encode())

    def of(self, before: bytes, row: AuditRow) -> bytes:
        return self.digest(before + _encode(row))

    def follows(self, before: bytes, sealed: SealedRow) -> bool:
        """Whether a row is what its writer wrote after the one with the mac ``before``."""
        return compare_digest(self.of(before, sealed.row), sealed.mac)


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
