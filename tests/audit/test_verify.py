"""Verification finds what was done to the audit behind its back, and where. On every backend."""

from collections.abc import Callable

import msgspec
import pytest

from mcp_junction.audit.checkpoints import Checkpoint, CheckpointDirectory, read_exported
from mcp_junction.audit.entries import Entry
from mcp_junction.audit.maintenance import retire
from mcp_junction.audit.verify import Verification, verify
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.database import Dialect

PER_PAGE = 3


class Trail:
    """An audit with one closed chain, in pages: its opening is row 1; rows 2–4, 5–7, 8–10, 11."""

    def __init__(self, store, opener, dump) -> None:
        self.store = store
        self.opener = opener
        self.run = dump.run
        self.writer = ""

    async def write(self, count: int, start: float = 100.0) -> str:
        async with self.opener.new_log(self.store, now=lambda: start) as log:
            for n in range(count):
                if n % PER_PAGE == 0:
                    await log.flush()
                entry = Entry(kind="call", actor="bot", action=f"a{n}", at=start + n)
                log.record(entry)
        self.writer = log.writer
        return log.writer

    async def edit(self, seq: int, change: Callable[[list[bytes], int], None], *, tags=False):
        """Do something to the lines of a page, or to its tags; it knows where the row stands."""
        pages = await self.store.audit.pages(self.writer)
        page = next(page for page in pages if page.last_seq >= seq)
        size = len(page.tags) // len(page.lines)
        marks = [page.tags[at : at + size] for at in range(0, len(page.tags), size)]
        lines = page.lines
        change(lines, seq - page.first_seq)
        if tags:
            change(marks, seq - page.first_seq)
        body, marked = b"\n".join(lines), b"".join(marks)
        await self.run(
            f"UPDATE audit_pages SET body = {self._bytes(body)}, tags = {self._bytes(marked)}"
            f" WHERE writer = '{self.writer}' AND last_seq = {page.last_seq}"
        )

    def _bytes(self, value: bytes) -> str:
        if self.store.dialect is Dialect.SQLITE:
            return f"X'{value.hex()}'"
        return f"decode('{value.hex()}', 'hex')"

    async def retire(self, log, before: float) -> int:
        keys = self.opener.vault.derive_keys("audit")
        return await retire(self.store.audit, log, self.opener.checkpoints, keys, before)

    async def forge(self, writer: str, kind: str, detail: str) -> None:
        """Put a page of one row into the store, as somebody can who has no key."""
        row = [writer, 1, 1.0, kind, "junction", "audit.retire", "", None, None, None, None]
        row += [False, None, None, None, 0, None, None, detail, None]
        mac, tag, body = map(self._bytes, (bytes(32), bytes(16), msgspec.json.encode(row)))
        await self.run(
            "INSERT INTO audit_pages"
            " (writer, first_seq, last_seq, first_at, last_at, mac, tags, body)"
            f" VALUES ('{writer}', 1, 1, 1, 1, {mac}, {tag}, {body})"
        )

    async def verify(self, **given) -> Verification:
        points = given.get("checkpoints", self.opener.checkpoints.all())
        return await verify(self.store.audit, self.opener.vault.derive_keys("audit"), points)

    async def found(self, **given) -> list[tuple[str, int]]:
        verdict = await self.verify(**given)
        return [(finding.writer, finding.seq) for finding in verdict.findings]


@pytest.fixture
async def trail(store, opener, dump) -> Trail:
    trail = Trail(store, opener, dump)
    await trail.write(10)
    return trail


async def test_an_audit_that_nobody_touched_is_sound(trail):
    await trail.write(5)
    verdict = await trail.verify()
    assert (verdict.rows, verdict.chains, verdict.findings) == (11 + 6, 2, [])


@pytest.mark.parametrize(
    ("tampering", "where"),
    [
        ("UPDATE audit_pages SET last_at = last_at + 1 WHERE last_seq = 7", 5),
        ("UPDATE audit_pages SET first_at = first_at + 1 WHERE last_seq = 1", 1),
        ("UPDATE audit_pages SET last_seq = 12 WHERE last_seq = 11", 12),
        ("UPDATE audit_pages SET tags = body WHERE last_seq = 7", 5),
        ("UPDATE audit_pages SET body = tags WHERE last_seq = 7", 5),
        (
            "UPDATE audit_pages SET mac = (SELECT mac FROM audit_pages WHERE last_seq = 4)"
            " WHERE last_seq = 7",
            5,
        ),
        ("DELETE FROM audit_pages WHERE last_seq = 7", 5),
        ("DELETE FROM audit_pages WHERE last_seq = 1", 1),
        ("DELETE FROM audit_pages WHERE last_seq <= 4", 1),
        ("DELETE FROM audit_pages WHERE last_seq > 7", 8),
        ("DELETE FROM audit_pages WHERE last_seq = 11", 11),
        ("DELETE FROM audit_pages", 1),
    ],
)
async def test_the_first_bad_row_of_pages_that_were_tampered_with_is_named(trail, tampering, where):
    await trail.run(tampering)
    assert await trail.found() == [(trail.writer, where)]


def replace(lines: list[bytes], at: int) -> None:
    lines[at] = lines[at].replace(b'"bot"', b'"bit"') + b" "


def remove(lines: list[bytes], at: int) -> None:
    del lines[at]


def swap(lines: list[bytes], at: int) -> None:
    lines[at], lines[at + 1] = lines[at + 1], lines[at]


def slip_in(lines: list[bytes], at: int) -> None:
    lines.insert(at, lines[at - 1])


def spoil(lines: list[bytes], at: int) -> None:
    lines[at] = b"{"


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize(
    ("change", "seq"), [(replace, 6), (remove, 6), (remove, 7), (swap, 6), (slip_in, 6), (spoil, 5)]
)
async def test_the_first_bad_row_within_a_page_is_named(trail, change, seq, tags):
    await trail.edit(seq, change, tags=tags and change is not spoil)
    assert await trail.found() == [(trail.writer, seq)]
    shown = await trail.store.audit.rows(AuditQuery(limit=100))
    assert len(shown) >= 10, "what can still be read is shown"


async def test_a_row_that_was_added_to_the_last_page_is_found(trail):
    await trail.edit(11, lambda lines, at: lines.append(lines[at]), tags=True)
    await trail.run("UPDATE audit_pages SET last_seq = 12 WHERE last_seq = 11")
    assert await trail.found() == [(trail.writer, 12)]


async def test_pages_that_changed_places_are_found(trail):
    for old, new in ((4, -1), (7, 4), (-1, 7)):
        await trail.run(
            f"UPDATE audit_pages SET last_seq = {new}, first_seq = {new - 2} WHERE last_seq = {old}"
        )
    assert await trail.found() == [(trail.writer, 2)]


async def test_a_page_that_was_slipped_in_is_found(trail):
    columns = "first_at, last_at, mac, tags, body"
    await trail.run(
        f"INSERT INTO audit_pages (writer, first_seq, last_seq, {columns})"
        f" SELECT writer, 12, 12, {columns} FROM audit_pages WHERE last_seq = 11"
    )
    assert await trail.found() == [(trail.writer, 12)]


async def test_a_chain_that_is_gone_with_its_checkpoint_is_missed_by_the_next_one(trail):
    first = trail.writer
    await trail.write(3)
    await trail.run(f"DELETE FROM audit_pages WHERE writer = '{first}'")
    trail.opener.checkpoints.remove(first)
    assert await trail.found() == [(first, 1)]


async def test_a_checkpoint_that_was_kept_elsewhere_shows_a_cut_tail(trail, tmp_path):
    exported = tmp_path / "kept.jsonl"
    exported.write_bytes(b"\n".join(map(msgspec.json.encode, trail.opener.checkpoints.all())))
    await trail.run("DELETE FROM audit_pages WHERE last_seq > 7")
    trail.opener.checkpoints.remove(trail.writer)
    assert await trail.found() == []
    assert await trail.found(checkpoints=read_exported(exported)) == [(trail.writer, 8)]


async def test_a_forged_checkpoint_is_found(trail):
    point = Checkpoint(trail.writer, 7, "00" * 32, 1.0).sign(b"another key")
    assert await trail.found(checkpoints=[point]) == [(trail.writer, 7)]


async def test_a_checkpoint_that_cannot_be_read_is_found(trail, tmp_path):
    file = tmp_path / "data" / "audit" / f"{trail.writer}.checkpoint"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"{")
    assert await trail.found() == [(trail.writer, 0)]


async def test_without_the_key_no_chain_is_right(trail):
    verdict = await verify(trail.store.audit, [b"another key"], [])
    assert [finding.seq for finding in verdict.findings] == [1]


async def test_a_chain_of_an_older_key_is_still_right(trail):
    keys = [b"a newer key", *trail.opener.vault.derive_keys("audit")]
    verdict = await verify(trail.store.audit, keys, trail.opener.checkpoints.all())
    assert verdict.findings == []


async def test_retention_removes_what_is_old_and_what_is_left_is_sound(trail):
    old = trail.writer
    gone = await trail.write(3, start=50.0)
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    points = trail.opener.checkpoints
    assert await trail.retire(log, 106.0) == 7 + 4
    await log.flush()
    assert await trail.store.audit.pages(gone) == []
    assert [page.first_seq for page in await trail.store.audit.pages(old)] == [8, 11]
    assert gone not in {point.writer for point in points.all()}
    assert await trail.found() == []
    assert await trail.retire(log, 109.0) == 3
    assert await trail.found() == []
    await trail.run(f"DELETE FROM audit_pages WHERE writer = '{old}' AND last_seq = 11")
    assert await trail.found() == [(old, 11)]


async def test_retention_keeps_a_page_as_long_as_its_youngest_row(trail):
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    assert await trail.retire(log, 104.5) == 4
    assert (await trail.store.audit.pages(trail.writer))[0].first_seq == 5


async def test_more_than_retention_removed_is_found(trail):
    old = trail.writer
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    await trail.retire(log, 106.0)
    await trail.run(f"DELETE FROM audit_pages WHERE writer = '{old}' AND last_seq = 10")
    assert await trail.found() == [(old, 8)]


@pytest.mark.parametrize("seq", [4, 10, 11])
async def test_retention_removes_nothing_for_a_time_that_was_changed_in_the_store(trail, seq):
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    await trail.run(f"UPDATE audit_pages SET first_at = 1, last_at = 1 WHERE last_seq = {seq}")
    assert await trail.retire(log, 50.0) == 0
    await log.flush()
    assert [writer for writer, _ in await trail.found()] == [trail.writer], "it is still found"


async def test_retention_removes_nothing_behind_a_row_that_was_changed(trail):
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    await trail.edit(7, lambda lines, at: lines.__setitem__(at, lines[at].replace(b"105", b"1")))
    await trail.run("UPDATE audit_pages SET last_at = 1 WHERE last_seq = 7")
    assert await trail.retire(log, 50.0) == 0


async def test_retention_removes_what_an_older_key_has_sealed(trail):
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    keys = [b"a newer key", *trail.opener.vault.derive_keys("audit")]
    points = trail.opener.checkpoints
    assert await retire(trail.store.audit, log, points, keys, before=106.0) == 7


@pytest.mark.parametrize(
    "detail",
    [
        "{}",
        "{",
        "[]",
        '{"writer": [], "seq": 1, "head": ""}',
        '{"writer": "w", "seq": 0}',
        "\u00fc",
    ],
)
async def test_an_anchor_that_nobody_with_a_key_wrote_is_named_and_not_believed(trail, detail):
    await trail.forge("w", "anchor", detail)
    assert await trail.found() == [("w", 1)]


async def test_a_forged_anchor_does_not_stand_for_rows_that_are_gone(trail):
    await trail.run(f"DELETE FROM audit_pages WHERE writer = '{trail.writer}'")
    detail = {"writer": trail.writer, "seq": 11, "head": "00" * 32}
    await trail.forge("w", "anchor", msgspec.json.encode(detail).decode())
    assert sorted(await trail.found()) == sorted([("w", 1), (trail.writer, 1)])


def test_checkpoints_of_an_empty_folder_are_none(tmp_path):
    assert CheckpointDirectory(tmp_path / "nothing").all() == []
