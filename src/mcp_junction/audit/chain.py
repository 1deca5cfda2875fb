"""Chain: entries in, sealed rows out; and the check that goes the other way. Pure.

The mac of a row is HMAC-SHA-256 over the mac before it and the row's encoding. The first row
follows the *genesis* of its writer. So an edit breaks its own row; a deletion or a reordering the
row after.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcp_junction.audit.redact import params_digest, redacted, redacted_text, summary
from mcp_junction.store.records import AuditRow, SealedRow

_WIDEST: Final = 512
_DETAIL: Final = 8_192
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, kw_only=True):
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

    __slots__ = ("_key", "mac", "seq", "writer")

    def __init__(self, key: bytes, writer: str) -> None:
        self._key = key
        self.writer = writer
        self.seq = 0
        self.mac = genesis(key, writer)

    def extend(self, entries: Iterable[Entry]) -> list[SealedRow]:
        """Seal entries, in their order."""
        sealed = []
        for entry in entries:
            row = _row(entry, self.writer, self.seq + 1)
            self.mac = mac(self._key, self.mac, row)
            self.seq = row.seq
            sealed.append(SealedRow(row, self.mac))
        return sealed


def genesis(key: bytes, writer: str) -> bytes:
    """What the first row of a writer follows."""
    return hmac.digest(key, b"genesis/" + writer.encode(), "sha256")


def mac(key: bytes, before: bytes, row: AuditRow) -> bytes:
    return hmac.digest(key, before + _encode(row), "sha256")


def follows(key: bytes, before: bytes, sealed: SealedRow) -> bool:
    """Whether a row is what its writer wrote after the one with the mac ``before``."""
    return hmac.compare_digest(mac(key, before, sealed.row), sealed.mac)


def reference(row: AuditRow) -> str:
    """How another row names this one."""
    return f"{row.writer}:{row.seq}"


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
