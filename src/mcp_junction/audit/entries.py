"""Entry: something to be recorded in the audit, and how it is encoded as a row of its page."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, ClassVar, Final, Protocol

import msgspec

from mcp_junction.redaction.connections import mask_url
from mcp_junction.redaction.detect import Memo, names_secret
from mcp_junction.redaction.payloads import (
    LOOKED_AT,
    clean,
    digest_params,
    redact_named_values,
    redact_value,
    summarize,
)
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.audit_terms import TermKey, needs_filter

_WIDEST: Final = 512
_DETAIL: Final = 8_192
_encode = encode_row = msgspec.json.Encoder().encode
"""Encodes the fields of an AuditRow, in their order."""

OPENS: Final = ""
"""In the place of a reference: the row is an intent itself."""

EncodedRow = tuple[bytes, TermKey, str | None, str | None]
"""The line of a row; what the row is found by, its values as they were written; its correlation id,
if the time in that does not lead to the row; and the reference of the intent that it closes, or
OPENS."""


class Recordable(Protocol):
    """Something to be recorded, which becomes a row when its page is made."""

    @property
    def at(self) -> float: ...

    @property
    def closes(self) -> str | None:
        """The reference of the intent that it is the outcome of."""
        ...

    @property
    def result(self) -> bytes | msgspec.Raw | None:
        """What its summary is made from: JSON, or the beginning of it."""
        ...

    @property
    def server_id(self) -> str | None: ...

    @property
    def shared(self) -> object | None:
        """What its row has in common with all rows that have the same; None if that is nothing."""
        ...

    def encode(
        self, writer: str, seq: int, is_harmless: bool = False, like: int | None = None
    ) -> EncodedRow:
        """Encode it as an AuditRow. May raise anything.

        ``is_harmless`` says that its result was looked at: nothing in it has to be redacted.
        ``like`` is the place in its page of a row that has the same ``shared``: then it is encoded
        as a SimilarRow.
        """
        ...

    @property
    def kind(self) -> str: ...

    @property
    def actor(self) -> str: ...


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """Something to be recorded. Cheap to make: it is encoded, redacted and hashed later.

    ``params`` and ``result`` are raw JSON and never stored as such. ``detail`` is stored, redacted.
    """

    shared: ClassVar[None] = None
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
    digest: str | None = None
    """That of its parameters, in their place; for long ones that must not be kept."""
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

    def shorten(self) -> None:
        """Let go of what its row does not need: it may have to wait for the store."""
        params, result = self.params, self.result
        if params is not None and len(params) > LOOKED_AT:
            self.digest, self.params = digest_params(params), None
        if result is not None and len(result) > LOOKED_AT:
            self.result = result[:LOOKED_AT]

    def encode(
        self, writer: str, seq: int, is_harmless: bool = False, like: int | None = None
    ) -> EncodedRow:
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
                self.digest or digest_params(self.params),
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
        intent = OPENS if self.kind == "intent" else self.closes
        if correlation is None or not needs_filter(correlation, self.at):
            return line, key, None, intent
        return line, key, clean_text(correlation), intent


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
