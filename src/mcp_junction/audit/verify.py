"""Verification: checks that audit rows are unchanged, and finds the first bad row of each chain.

It walks every chain, compares it with its checkpoints and anchors, and follows the link from each
chain to the one that was opened before it. The index of each chain is compared with its pages.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from mcp_junction.audit.checkpoints import Checkpoint, Seals
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.audit_index import StoredSegment
from mcp_junction.store.audit_records import AuditPage, AuditQuery, AuditRow
from mcp_junction.store.audit_terms import key_of, may_hold, needs_filter, terms_of


class AuditFault(NamedTuple):
    """A row that was changed, moved or removed."""

    writer: str
    seq: int
    what: str

    def __str__(self) -> str:
        return f"row {self.seq} of writer {self.writer}: {self.what}"


class Verification(msgspec.Struct):
    """The result of a check: how much was checked, and the first bad row of each chain."""

    rows: int = 0
    chains: int = 0
    findings: list[AuditFault] = []
    index_faults: list[str] = []
    """Where the index differs from the pages. It is no evidence, and can be made again."""


class _Head(NamedTuple):
    """A row that must exist, because something outside its chain refers to it."""

    writer: str
    seq: int
    head: str
    source: str


async def verify(
    trail: AuditTrail, keys: Sequence[bytes], checkpoints: Iterable[Checkpoint]
) -> Verification:
    """Check every chain. ``keys`` are all keys that the audit has had."""
    result = Verification()
    points, forged = _sort_checkpoints(checkpoints, keys)
    result.findings.extend(forged)
    chains = await trail.chains()
    anchors = await _read_anchors(trail, keys)
    walks = {writer: _Walk(writer, keys, anchors.get(writer, {})) for writer in chains}
    for writer in chains:
        await walks[writer].check(trail, result, {p.seq: p.head for p in points.get(writer, [])})
    claims = [_Head(p.writer, p.seq, p.head, "a checkpoint") for ps in points.values() for p in ps]
    claims += [head for walk in walks.values() for head in walk.links]
    named, stored = await trail.index.counts()
    if named != stored and not result.index_faults:
        result.index_faults.append(f"the index has {stored} terms where it should have {named}")
    broken = {finding.writer for finding in result.findings}
    for claim in claims:
        walk = walks.get(claim.writer)
        last = walk.last if walk else max(anchors.get(claim.writer, {}), default=0)
        if claim.seq > last and claim.writer not in broken:
            broken.add(claim.writer)
            missing = f"it is missing, and so is all to row {claim.seq}; {claim.source} has it"
            result.findings.append(AuditFault(claim.writer, last + 1, missing))
    return result


class _Walk:
    """Checks one chain, from its beginning or its anchor to its end."""

    def __init__(self, writer: str, keys: Sequence[bytes], anchors: dict[int, str]) -> None:
        self._writer = writer
        self._keys = [Seals(key) for key in keys]
        self._seals = self._keys[0]
        self._anchors = anchors
        self.last = 0
        self.links: list[_Head] = []

    async def check(self, trail: AuditTrail, result: Verification, heads: dict[int, str]) -> None:
        result.chains += 1
        index = _IndexCheck(trail, self._writer)
        before: bytes | None = None
        while pages := await trail.pages(self._writer, self.last):
            for page in pages:
                before = before if before is not None else self._first_mac(page)
                what = self._check_page(page, before, heads)
                if what is not None:
                    result.findings.append(AuditFault(self._writer, what[0], what[1]))
                    return
                before = page.mac
                self.last = page.last_seq
                result.rows += len(page.lines)
                self._link(page)
                await index.add(page)
            await asyncio.sleep(0)  # let other tasks run
        result.index_faults += index.faults

    def _first_mac(self, first: AuditPage) -> bytes:
        """Return the MAC that the first stored page must follow; find the key of this chain."""
        before = first.first_seq - 1
        self.last = max((seq for seq in self._anchors if seq <= before), default=0)
        anchor = bytes.fromhex(self._anchors.get(before, ""))
        for seals in self._keys:
            if seals.is_next(anchor or seals.genesis(self._writer), first):
                self._seals = seals
                break
        return anchor or self._seals.genesis(self._writer)

    def _check_page(
        self, page: AuditPage, before: bytes, heads: dict[int, str]
    ) -> tuple[int, str] | None:
        expected = self.last + 1
        if page.first_seq != expected:
            return expected, "it is missing"
        if not self._seals.is_next(before, page):
            row = self._seals.first_bad_row(page)
            return row or expected, "it was changed, or is not where it was written"
        if heads.get(page.last_seq, page.mac.hex()) != page.mac.hex():
            return page.last_seq, "it is not the one that a checkpoint has seen"
        return None

    def _link(self, page: AuditPage) -> None:
        if page.first_seq != 1:
            return
        opened = next(page.rows())
        if opened.kind == "opened" and (after := _detail(opened).get("after")):
            source = f"the beginning of {self._writer}"
            self.links.append(_Head(after["writer"], after["seq"], after["head"], source))


class _IndexCheck:
    """Compares the index of one chain with its pages, which it is given in order."""

    def __init__(self, trail: AuditTrail, writer: str) -> None:
        self._trail = trail
        self._writer = writer
        self._segments: list[StoredSegment] = []
        self._terms: dict[int, set[int]] = {}
        self.faults: list[str] = []
        """The first one: after it nothing more is compared."""

    async def add(self, page: AuditPage) -> None:
        """Check one page, and its segment when it is the last one of it."""
        segment = None if self.faults else await self._segment_of(page)
        if segment is None:
            return
        numbers = {spot.last_seq: number for number, spot in enumerate(segment.spots)}
        number = numbers.get(page.last_seq)
        if number is None or page.first_seq < segment.first_seq:
            self._fail(segment)
            return
        for row in page.rows():
            for term in terms_of(key_of(row)):
                self._terms.setdefault(term, set()).add(number)
            if not _is_held(row, segment):
                self._fail(segment)
                return
        if page.last_seq == segment.last_seq:
            await self._check_terms(segment)

    async def _segment_of(self, page: AuditPage) -> StoredSegment | None:
        """Return the segment of a page; None where the index ends before it."""
        while self._segments and self._segments[0].last_seq < page.first_seq:
            self._segments.pop(0)
            self._terms = {}
        if not self._segments:
            try:
                self._segments = await self._trail.index.segments(self._writer, page.first_seq - 1)
            except (msgspec.MsgspecError, TypeError, ValueError):
                self._fail(None)
            self._terms = {}
        return self._segments[0] if self._segments else None

    async def _check_terms(self, segment: StoredSegment) -> None:
        """Compare the terms of a segment, as far as retention has left its pages."""
        stored = await self._trail.index.terms(segment)
        kept = {number for numbers in self._terms.values() for number in numbers}
        named = {term: set(pages) & kept for term, pages in stored.items() if set(pages) & kept}
        if named != self._terms:
            self._fail(segment)

    def _fail(self, segment: StoredSegment | None) -> None:
        where = "" if segment is None else f" at rows {segment.first_seq} to {segment.last_seq}"
        self.faults.append(f"the index of writer {self._writer} differs from its pages{where}")


def _is_held(row: AuditRow, segment: StoredSegment) -> bool:
    """Whether the correlation id of a row leads to its segment."""
    correlation = row.correlation_id
    if correlation is None or not needs_filter(correlation, row.at):
        return True
    return may_hold(segment.correlations, correlation)


def _sort_checkpoints(
    checkpoints: Iterable[Checkpoint], keys: Sequence[bytes]
) -> tuple[dict[str, list[Checkpoint]], list[AuditFault]]:
    """Sort checkpoints by writer; report those that no key of ours has signed."""
    genuine: dict[str, list[Checkpoint]] = {}
    forged = []
    for point in checkpoints:
        if any(point.is_genuine(key) for key in keys):
            genuine.setdefault(point.writer, []).append(point)
        else:
            forged.append(AuditFault(point.writer, point.seq, "its checkpoint was changed"))
    return genuine, forged


async def _read_anchors(trail: AuditTrail, keys: Sequence[bytes]) -> dict[str, dict[int, str]]:
    """Read the anchors: writer → number of the last removed row → its MAC.

    Each is itself a row of a chain; one whose page is not genuine is ignored.
    """
    seals = [Seals(key) for key in keys]
    found: dict[str, dict[int, str]] = {}
    for row in await trail.rows(AuditQuery(kind="anchor", limit=sys.maxsize)):
        pages = await trail.pages(row.writer, row.seq - 1, limit=1)
        if any(seal.is_intact(page) and row in page.rows() for page in pages for seal in seals):
            detail = _detail(row)
            found.setdefault(detail["writer"], {})[detail["seq"]] = detail["head"]
    return found


def _detail(row: AuditRow) -> dict[str, Any]:
    detail: dict[str, Any] = msgspec.json.decode(row.detail or "{}")
    return detail
