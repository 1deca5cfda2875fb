"""CallRow: a call that ended well, as the audit keeps it until its row is encoded.

Nearly all calls are so: made by a principal in its own name, and answered with a short result. Such
a call needs no Entry. What its row has in common with others of the same caller, target and
decision is encoded once. Its arguments are hashed at once: rows that a store does not take wait,
and must hold nothing large. Everything else is recorded by an Entry (``stages/audit.py``).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.audit.entries import NAMES, EncodedRow, clean_text, encode_row
from mcp_junction.calls.call import NOTHING_CARRIED
from mcp_junction.calls.events import CallEnded
from mcp_junction.catalog.items import Route
from mcp_junction.policy.decision import ALLOW, PolicyDecision
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.correlation import BEGINNING, read_beginning
from mcp_junction.protocol.frames import octets
from mcp_junction.redaction.payloads import SUMMARY, digest_params, digest_value, summarize
from mcp_junction.store.audit_terms import PROMPT, TermKey, needs_filter
from mcp_junction.telemetry.events import OutcomeName

_OK: Final = OutcomeName.OK.value
_TOOL_ERROR: Final = OutcomeName.TOOL_ERROR.value
_MAX_SUBJECTS: Final = 1_000
_join = b"".join


class _Subject(msgspec.Struct, frozen=True, eq=False):
    """Who called what, by which rule: fields of a row that stand together, encoded."""

    who: Raw
    """Actor, role and action."""
    what: Raw
    """Server, target, decision and whether that was cached."""
    rule: Raw
    """Acting agent, tool and rule."""
    head: Raw
    """The kind of a plain call, and ``who``."""
    tail: Raw
    """The detail and the intent of a plain call, which has neither, ``rule``, and its labels."""
    key: TermKey
    made_of: tuple[Principal, str, Route, PolicyDecision | None]
    """Keeps these alive: the subject is found by their ids."""


_subjects: Final[dict[tuple[int, str, int, int], _Subject]] = {}
"""Those of the last calls. A change of a grant, a tool or a key makes other objects."""


class _Labels(msgspec.Struct, frozen=True, gc=False):
    """Fields of a row that a plain call has nothing in, or always the same."""

    intent: str | None
    is_tool_error: bool
    attempts: int
    own_correlation_id: str | None
    """The caller's own, if it has sent one."""
    ticket_id: str | None
    task_id: str | None


class CallRow(msgspec.Struct, frozen=True, gc=False):
    """The end of one call. It waits for its page, so it keeps neither the call nor its arguments,
    and its result has to be short."""

    subject: _Subject
    at: float
    seconds: float
    correlation_id: str
    digest: str | None
    """That of its arguments."""
    result: Raw | bytes
    labels: _Labels | None
    """None for a plain call."""
    shared: _Subject | None
    """The subject of a plain call, whose row may be a SimilarRow."""

    @property
    def server_id(self) -> str | None:
        return self.subject.key[2]

    @property
    def kind(self) -> str:
        return "call" if self.closes is None else "outcome"

    @property
    def actor(self) -> str:
        return self.subject.key[0]

    @property
    def closes(self) -> str | None:
        return None if self.labels is None else self.labels.intent

    def encode(
        self, writer: str, seq: int, is_harmless: bool = False, like: int | None = None
    ) -> EncodedRow:
        """Encode it as an AuditRow, or as a SimilarRow."""
        if self.labels is not None:
            return self._encode_labelled(writer, seq, self.labels)
        subject, at, correlation, result = self.subject, self.at, self.correlation_id, self.result
        digest, milliseconds = self.digest, self.seconds * 1000
        summary = (
            str(result, "utf-8", "replace")[:SUMMARY]
            if is_harmless
            else summarize(_join((result,)), subject.key[2])
        )
        if like is not None:
            line = encode_row((like, at, correlation, digest, milliseconds, summary))
        else:
            who, what, tail = subject.head, subject.what, subject.tail
            line = encode_row(
                (
                    *(writer, seq, at, who, correlation, what, digest),
                    *(_OK_AT_ONCE, milliseconds, summary, tail),
                )
            )
        made = read_beginning(correlation[:BEGINNING])
        if made is not None and -1.0 <= at - made <= PROMPT:
            return line, subject.key, None, None
        return line, subject.key, correlation, None

    def _encode_labelled(self, writer: str, seq: int, labels: _Labels) -> EncodedRow:
        """Encode a call that is not plain in every respect."""
        subject, at, correlation = self.subject, self.at, self.correlation_id
        is_filtered = needs_filter(correlation, at)
        if labels.own_correlation_id is not None:  # else it is one of ours
            correlation = clean_text(correlation)
        intent = labels.intent
        line = encode_row(
            (
                writer,
                seq,
                at,
                self.kind,
                subject.who,
                correlation,
                subject.what,
                self.digest,
                _TOOL_ERROR if labels.is_tool_error else _OK,
                None,  # delivery: it was answered
                labels.attempts,
                self.seconds * 1000,
                summarize(octets(self.result), subject.key[2]),
                None,  # detail
                intent,
                subject.rule,
                None if labels.ticket_id is None else clean_text(labels.ticket_id),
                None if labels.task_id is None else clean_text(labels.task_id),
            )
        )
        return line, subject.key, correlation if is_filtered else None, intent


def make_row(ended: CallEnded, at: float) -> CallRow:
    """Make the row of a call that ended well, with a short result."""
    subject = _subjects.get(
        (id(ended.principal), ended.method, id(ended.route), id(ended.decision))
    ) or _add_subject(ended)
    read, arguments, outcome = ended.read, ended.arguments, ended.outcome
    if read is not None and not read.has_fractions:
        digest: str | None = digest_value(read.value)
    else:
        digest = None if arguments is None else digest_params(_join((arguments,)))
    labels = None
    if (
        ended.carried is not NOTHING_CARRIED
        or ended.intent is not None
        or ended.read_tool_error is not False
        or outcome.attempts != 1
    ):
        carried = ended.carried
        labels = _Labels(
            ended.intent,
            ended.is_tool_error,
            outcome.attempts,
            carried.correlation_id,
            carried.ticket_id,
            carried.task_id,
        )
    shared = subject if labels is None else None
    return CallRow(
        subject, at, ended.seconds, ended.correlation_id, digest, outcome.payload, labels, shared
    )


def _add_subject(ended: CallEnded) -> _Subject:
    route, decision, principal = ended.route, ended.decision, ended.principal
    assert route is not None
    server_id, canonical, tool = route.upstream.definition.id, route.canonical, route.pair.name
    actor, target, tool_name = NAMES[principal.id], NAMES[canonical], NAMES[tool]
    is_cached = decision is not None and decision.cached
    rule = None if decision is None else decision.rule
    who, by_rule = _fields(actor, principal.role, NAMES[ended.method]), (None, tool_name, rule)
    subject = _Subject(
        who,
        _fields(server_id, target, ALLOW, is_cached),
        _fields(*by_rule),
        _fields("call", who),
        _fields(None, None, *by_rule, None, None),
        (actor, None, server_id, tool_name, target, ALLOW),
        (principal, ended.method, route, decision),
    )
    if len(_subjects) >= _MAX_SUBJECTS:
        _subjects.clear()
    _subjects[id(principal), ended.method, id(route), id(decision)] = subject
    return subject


def _fields(*values: object) -> Raw:
    """Encode fields that stand together in a row."""
    return Raw(encode_row(values)[1:-1])


_OK_AT_ONCE: Final = _fields(_OK, None, 1)
"""The outcome, the delivery and the attempts of nearly all calls."""
