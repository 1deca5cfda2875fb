"""Records of the audit: rows and the pages that they are stored in; writers and queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec

from mcp_junction.policy.decision import ALLOW, DENY


class AuditRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row of the audit. Its encoding is a line of its page, or else a SimilarRow's is."""

    writer: str
    seq: int
    at: float
    kind: str
    actor: str
    role: str
    action: str
    correlation_id: str | None
    server_id: str | None
    target: str | None
    decision: str | None
    cached: bool
    params_sha256: str | None
    outcome: str | None
    delivery: str | None
    attempts: int
    latency_ms: float | None
    summary: str | None
    detail: str | None
    closes: str | None
    # Rows that were written before there were governed calls end here.
    agent_id: str | None = None
    """The agent in whose name it was done, where that is not the actor."""
    tool_name: str | None = None
    """The server's own name of the tool that was asked for; ``target`` is what was called."""
    rule: str | None = None
    """What decided, as the policy names it."""
    ticket_id: str | None = None
    task_id: str | None = None

    @property
    def acting_agent(self) -> str:
        """In whose name it was done."""
        return self.actor if self.agent_id is None else self.agent_id


UNKNOWN: Final = "unknown"
"""The decision about a name that does not exist."""
_FORMER_DECISIONS: Final = {"allowed": ALLOW, "denied": DENY}
"""How decisions were written before there were governed calls."""


class SimilarRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an AuditRow has of its own, when all else is as in an earlier row of its page.

    Its encoding, shorter by a third and more, is the line of such a row.
    """

    like: Annotated[int, msgspec.Meta(ge=0)]
    """The place of that row in the page, from 0."""
    at: float
    correlation_id: str | None
    params_sha256: str | None
    latency_ms: float | None
    summary: str | None


_LONGEST_PLACE: Final = 9
"""Digits."""
_decode_row = msgspec.json.Decoder(AuditRow).decode
_decode_similar = msgspec.json.Decoder(SimilarRow).decode


class AuditPage(msgspec.Struct, frozen=True, gc=False):
    """Audit rows that were stored together, with the MAC that chains them to the page before.

    ``body`` has a row a line, whole or as a SimilarRow, ``tags`` sixteen bytes for each.
    """

    writer: str
    first_seq: int
    last_seq: int
    first_at: float
    last_at: float
    mac: bytes
    tags: bytes
    body: bytes

    @property
    def lines(self) -> list[bytes]:
        return self.body.split(b"\n")

    def rows(self, texts: Sequence[bytes] = ()) -> Iterator[AuditRow]:
        """Decode the rows that can be read and have all texts; verification reports the others."""
        lines = self.lines
        lacking: dict[bytes, list[bytes]] = {}
        whole: dict[int, AuditRow] = {}
        for place, line in enumerate(lines):
            wanted: Sequence[bytes] = texts
            if texts and not is_whole_row(line):
                like = line[1 : line.find(b",")]
                if (known := lacking.get(like)) is None:
                    known = lacking[like] = _find_lacking(lines, like, texts)
                wanted = known
            if not all(text in line for text in wanted):
                continue
            try:
                yield self._read_row(lines, place, whole)
            except (msgspec.DecodeError, LookupError):
                continue

    def _read_row(self, lines: list[bytes], place: int, whole: dict[int, AuditRow]) -> AuditRow:
        """Decode a row; ``whole`` keeps those that others are like. May raise LookupError."""
        line = lines[place]
        if is_whole_row(line):
            return _read_whole(line)
        own = _decode_similar(line)
        if (row := whole.get(own.like)) is None:
            row = whole[own.like] = _read_whole(lines[own.like])
        return msgspec.structs.replace(
            row,
            seq=self.first_seq + place,
            at=own.at,
            correlation_id=own.correlation_id,
            params_sha256=own.params_sha256,
            latency_ms=own.latency_ms,
            summary=own.summary,
        )


def is_whole_row(line: bytes) -> bool:
    """Whether a line of a page is the encoding of an AuditRow, not of a SimilarRow."""
    return line.startswith(b'["')


def _read_whole(line: bytes) -> AuditRow:
    row = _decode_row(line)
    if row.decision in _FORMER_DECISIONS:
        return msgspec.structs.replace(row, decision=_FORMER_DECISIONS[row.decision])
    return row


def _find_lacking(lines: list[bytes], like: bytes, texts: Sequence[bytes]) -> list[bytes]:
    """Return the texts that the line at a place lacks; all of them where there is no such line."""
    is_place = len(like) <= _LONGEST_PLACE and like.isdigit() and int(like) < len(lines)
    whole = lines[int(like)] if is_place else b""
    return [text for text in texts if text not in whole]


class AuditHead(msgspec.Struct, frozen=True):
    """A place in a chain: the number of a page's last row, and the page's MAC."""

    writer: str
    seq: int
    mac: bytes


class AuditWriter(msgspec.Struct, frozen=True):
    """A process that writes one chain of the audit."""

    writer: str
    key_id: str
    host: str
    pid: int
    opened_at: float
    seen_at: float
    closed_at: float | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for rows of the audit, newest first."""

    kind: str | None = None
    actor: str | None = None
    action: str | None = None
    server_id: str | None = None
    target: str | None = None
    correlation_id: str | None = None
    outcome: str | None = None
    agent: str | None = None
    """The acting agent."""
    tool: str | None = None
    """A tool by its server's own name for it, or by its canonical one."""
    decision: str | None = None
    own_calls_of: str | None = None
    """The agent that asks: only what belongs to it is found."""
    since: float | None = None
    until: float | None = None
    limit: int = 100
    before: tuple[float, str, int] | None = None
    """(at, writer, seq) of the last row of the page before."""


class AuditFound(msgspec.Struct, frozen=True):
    """Rows of the audit, newest first, as far as one request looked for them."""

    rows: list[AuditRow]
    before: tuple[float, str, int] | None
    """Where to go on; None when there are no more."""
