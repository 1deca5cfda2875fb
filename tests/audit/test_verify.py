"""Verification finds what was done to the audit behind its back, and where. On every backend."""

import pytest

from mcp_junction.audit.chain import Entry
from mcp_junction.audit.checkpoints import Checkpoint, Checkpoints, read_exported
from mcp_junction.audit.retention import retire
from mcp_junction.audit.verify import Verdict, verify


class Trail:
    """An audit with one closed chain of rows, the first of them its opening."""

    def __init__(self, store, opener, dump) -> None:
        self.store = store
        self.opener = opener
        self.run = dump.run
        self.writer = ""

    async def write(self, count: int, start: float = 100.0) -> str:
        async with self.opener.new_log(self.store, now=lambda: start) as log:
            for n in range(count):
                entry = Entry(kind="call", actor="bot", action=f"a{n}", at=start + n)
                log.record(entry)
        self.writer = log.writer
        return log.writer

    async def verify(self, **given) -> Verdict:
        points = given.get("checkpoints", self.opener.checkpoints.all())
        return await verify(self.store.audit, self.opener.vault.derived("audit"), points)

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
        ("UPDATE audit SET actor = 'other' WHERE seq = 5", 5),
        ("UPDATE audit SET at = at + 1 WHERE seq = 5", 5),
        ("UPDATE audit SET decision = 'DENY' WHERE seq = 1", 1),
        ("UPDATE audit SET detail = NULL WHERE seq = 1", 1),
        ("UPDATE audit SET mac = (SELECT mac FROM audit WHERE seq = 4) WHERE seq = 5", 5),
        ("DELETE FROM audit WHERE seq = 5", 5),
        ("DELETE FROM audit WHERE seq = 1", 1),
        ("DELETE FROM audit WHERE seq <= 3", 1),
        ("DELETE FROM audit WHERE seq > 7", 8),
        ("DELETE FROM audit WHERE seq = 11", 11),
        ("DELETE FROM audit", 1),
    ],
)
async def test_the_first_bad_row_is_named(trail, tampering, where):
    await trail.run(tampering)
    assert await trail.found() == [(trail.writer, where)]


async def test_rows_that_changed_places_are_found(trail):
    for sql in (
        "UPDATE audit SET seq = -1 WHERE seq = 4",
        "UPDATE audit SET seq = 4 WHERE seq = 5",
        "UPDATE audit SET seq = 5 WHERE seq = -1",
    ):
        await trail.run(sql)
    assert await trail.found() == [(trail.writer, 4)]


async def test_a_row_that_was_slipped_in_is_found(trail):
    columns = "at, kind, actor, role, action, cached, attempts, mac"
    await trail.run(
        f"INSERT INTO audit (writer, seq, {columns}) SELECT writer, 12, {columns}"
        " FROM audit WHERE seq = 11"
    )
    assert await trail.found() == [(trail.writer, 12)]


async def test_a_chain_that_is_gone_with_its_checkpoint_is_missed_by_the_next_one(trail):
    first = trail.writer
    await trail.write(3)
    await trail.run(f"DELETE FROM audit WHERE writer = '{first}'")
    trail.opener.checkpoints.remove(first)
    assert await trail.found() == [(first, 1)]


async def test_a_checkpoint_that_was_kept_elsewhere_shows_a_cut_tail(trail, tmp_path):
    import msgspec

    exported = tmp_path / "kept.jsonl"
    exported.write_bytes(b"\n".join(map(msgspec.json.encode, trail.opener.checkpoints.all())))
    await trail.run("DELETE FROM audit WHERE seq > 7")
    trail.opener.checkpoints.remove(trail.writer)
    assert await trail.found() == []
    assert await trail.found(checkpoints=read_exported(exported)) == [(trail.writer, 8)]


async def test_a_forged_checkpoint_is_found(trail):
    point = Checkpoint(trail.writer, 7, "00" * 32, 1.0).sealed(b"another key")
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
    keys = [b"a newer key", *trail.opener.vault.derived("audit")]
    verdict = await verify(trail.store.audit, keys, trail.opener.checkpoints.all())
    assert verdict.findings == []


async def test_retention_removes_what_is_old_and_what_is_left_is_sound(trail):
    old = trail.writer
    gone = await trail.write(3, start=50.0)
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    points = trail.opener.checkpoints
    assert await retire(trail.store.audit, log, points, before=105.0) == 6 + 4
    await log.flush()
    assert await trail.store.audit.chain(gone) == []
    assert [sealed.row.seq for sealed in await trail.store.audit.chain(old)] == list(range(7, 12))
    assert gone not in {point.writer for point in points.all()}
    assert await trail.found() == []
    assert await retire(trail.store.audit, log, points, before=107.0) == 2
    assert await trail.found() == []
    await trail.run(f"DELETE FROM audit WHERE writer = '{old}' AND seq = 9")
    assert await trail.found() == [(old, 9)]


async def test_more_than_retention_removed_is_found(trail):
    old = trail.writer
    log = await trail.opener.log(trail.store, now=lambda: 1000.0)
    await retire(trail.store.audit, log, trail.opener.checkpoints, before=105.0)
    await trail.run(f"DELETE FROM audit WHERE writer = '{old}' AND seq = 7")
    assert await trail.found() == [(old, 7)]


def test_checkpoints_of_an_empty_folder_are_none(tmp_path):
    assert Checkpoints(tmp_path / "nothing").all() == []
