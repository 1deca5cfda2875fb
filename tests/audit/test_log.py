"""The writer of the audit, on every backend."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress

import pytest

from mcp_junction.audit import checkpoints, entries
from mcp_junction.audit.chain import Chain
from mcp_junction.audit.entries import Entry
from mcp_junction.audit.verify import verify
from mcp_junction.errors import StoreUnavailable
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.telemetry.events import OutcomeName

BOUND = 20
DIE = """
import asyncio, os, sys
from pathlib import Path
from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault
async def main():
    vault = Vault([bytes(range(32))])
    store = await open_store(sys.argv[1], vault)
    points = CheckpointDirectory(Path(sys.argv[2]))
    log = AuditLog(store.audit, vault.derive_keys("audit")[0], vault.key_id, points)
    await log.__aenter__()
    closed = await log.intent(log.entry("intent", "bot", "tools/call", target="files.done"))
    log.record(log.entry("outcome", "bot", "tools/call", outcome="ok", closes=closed))
    await log.flush()
    await log.intent(log.entry("intent", "bot", "tools/call", target="files.rm", attempts=2))
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def rows(store, **asked):
    found = await store.audit.rows(AuditQuery(limit=10_000, **asked))
    return found[::-1]


async def is_sound(opener, store) -> bool:
    verdict = await verify(store.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all())
    return not verdict.findings


async def test_a_call_leaves_one_row_with_hashed_parameters_and_a_redacted_summary(store, opener):
    log = await opener.log(store)
    log.record(
        log.entry(
            "call",
            "build-bot",
            "tools/call",
            role="agent",
            correlation_id="c-1",
            server_id="0",
            target="files.read",
            decision="ALLOW",
            cached=True,
            params=b'{"path":"/x","token":"canary"}',
            outcome="ok",
            delivery="executed",
            attempts=2,
            latency_ms=12,
            result=b'{"content":[{"type":"text","text":"{\\"api_key\\":\\"canary\\"}"}]}',
        )
    )
    await log.flush()
    (row,) = await rows(store, correlation_id="c-1")
    assert (row.actor, row.role, row.action, row.target) == (
        "build-bot",
        "agent",
        "tools/call",
        "files.read",
    )
    assert (row.decision, row.cached, row.outcome, row.attempts) == ("ALLOW", True, "ok", 2)
    assert (row.latency_ms, len(row.params_sha256)) == (12.0, 64)
    assert "[REDACTED]" in row.summary
    assert "canary" not in repr(row)


async def test_rows_are_stored_by_themselves_soon_after(store, opener):
    log = await opener.log(store)
    log.record(log.entry("admin", "admin", "server.add"))
    async with asyncio.timeout(BOUND):
        while not await rows(store, kind="admin"):
            pass
    assert not log.is_failing


async def test_an_intent_is_stored_before_it_returns_and_its_outcome_closes_it(store, opener):
    log = await opener.log(store)
    closes = await log.intent(log.entry("intent", "bot", "tools/call", target="files.rm"))
    (intent,) = await rows(store, kind="intent")
    assert closes == f"{intent.writer}:{intent.seq}"
    assert len(await store.audit.open_intents([log.writer])) == 1
    log.record(log.entry("outcome", "bot", "tools/call", outcome="ok", closes=closes))
    await log.flush()
    assert await store.audit.open_intents([log.writer]) == []


async def test_a_page_that_is_given_again_is_stored_once(store, opener):
    chain = Chain(bytes(32), "w")
    opened = chain.extend([Entry(kind="intent", actor="bot", action="x", at=1.0)])
    closed = chain.extend([Entry(kind="outcome", actor="bot", action="x", at=2.0, closes="w:1")])
    alone = chain.extend([Entry(kind="call", actor="bot", action="x", at=3.0)])
    for page in (opened, opened, closed, opened, closed, alone, alone):
        await store.audit.append(page, durable=False)
    assert [row.seq for row in await rows(store)] == [1, 2, 3]
    assert await store.audit.open_intents(["w"]) == []


async def test_many_intents_at_once_each_get_their_own_row(store, opener):
    log = await opener.log(store)
    given = [log.entry("intent", "bot", "tools/call", target=f"t{n}") for n in range(200)]
    references = await asyncio.gather(*map(log.intent, given))
    stored = {f"{row.writer}:{row.seq}": row.target for row in await rows(store, kind="intent")}
    assert [stored[reference] for reference in references] == [f"t{n}" for n in range(200)]


async def test_after_a_crash_open_intents_become_unknown(store, opener, store_url, tmp_path):
    dying = [sys.executable, "-c", DIE, store_url, str(tmp_path / "data")]
    ended = await asyncio.to_thread(subprocess.run, dying, capture_output=True, timeout=BOUND)
    assert ended.returncode == -9, ended.stderr
    log = await opener.log(store)
    await log.flush()
    (row,) = await rows(store, kind="outcome", target="files.rm")
    assert (row.outcome, row.delivery, row.actor, row.attempts) == ("unknown", "unknown", "bot", 2)
    assert row.writer == log.writer
    assert not await rows(store, kind="outcome", target="files.done")
    assert await log.reconcile() == 0
    assert await is_sound(opener, store)


async def test_the_intents_of_a_living_writer_are_left_alone(store, opener):
    one = await opener.log(store)
    await one.intent(one.entry("intent", "bot", "tools/call"))
    two = await opener.log(store)
    assert await two.reconcile() == 0


async def test_a_writer_that_is_not_seen_for_long_is_dead_wherever_it_was(store, opener):
    one = await opener.log(store)
    await one.intent(one.entry("intent", "bot", "tools/call"))
    later = await opener.log(store, now=lambda: 4e9)
    await later.flush()
    assert [row.outcome for row in await rows(store, kind="outcome")] == ["unknown"]


async def test_each_writer_has_a_chain_and_names_the_one_before(store, opener):
    async with opener.new_log(store) as one:
        one.record(one.entry("admin", "admin", "x"))
    two = await opener.log(store)
    await two.flush()
    opened = (await rows(store, kind="opened"))[-1]
    after = json.loads(opened.detail)["after"]
    assert (opened.seq, after["writer"], after["seq"]) == (1, one.writer, 2)
    assert await is_sound(opener, store)


async def test_rows_are_found_by_what_they_tell_in_pages(store, opener):
    log = await opener.log(store)
    for n in range(30):
        log.record(
            Entry(kind="call", actor=f"a{n % 3}", action="tools/call", at=float(n), target="t")
        )
    await log.flush()
    assert len(await rows(store, actor="a1", kind="call")) == 10
    assert len(await rows(store, since=10.0, until=20.0)) == 10
    seen, before = [], None
    while page := await store.audit.rows(AuditQuery(kind="call", limit=7, before=before)):
        seen += [row.at for row in page]
        last = page[-1]
        before = (last.at, last.writer, last.seq)
    assert seen == [float(n) for n in reversed(range(30))]


async def test_whatever_a_caller_calls_itself_the_row_is_stored(store, opener):
    log = await opener.log(store)
    odd = ["\0", "a\ud800b", "x" * 100_000, "", "é\u2028\U0001f600", "'; DROP TABLE audit; --"]
    for name in odd:
        log.record(
            log.entry("call", name, name, target=name, correlation_id=name, result=b"\xff\0")
        )
    log.record(log.entry("call", "big", "x", detail={"text": ["y" * 2000] * 50, "token": "canary"}))
    await log.flush()
    found = await rows(store, kind="call")
    assert len(found) == len(odd) + 1
    assert max(len(row.target or "") for row in found) < 600
    assert "canary" not in repr(found)
    assert await is_sound(opener, store)


async def test_what_the_buffer_cannot_hold_is_counted_and_told(store, opener, caplog):
    log = await opener.log(store, most=10)
    await log.flush()
    for n in range(25):
        log.record(log.entry("call", "bot", "x", attempts=n))
    with pytest.raises(StoreUnavailable, match="cannot keep up"):
        await log.intent(log.entry("intent", "bot", "x"))
    assert log.lost == 15
    await log.flush()
    log.record(log.entry("call", "bot", "x"))
    await log.flush()
    assert len(await rows(store, kind="call")) == 11
    (loss,) = await rows(store, kind="loss")
    assert json.loads(loss.detail) == {"lost": 15}
    assert "audit entries are being lost" in caplog.text
    assert await is_sound(opener, store)


async def test_an_entry_that_cannot_be_read_does_not_stop_the_others(store, opener, caplog):
    log = await opener.log(store)
    log.record(log.entry("call", "one", "x"))
    log.record(log.entry("call", "two", "x", detail={"odd": object()}))
    log.record(log.entry("call", "three", "x", detail={"odd": "\ud800"}))
    log.record(log.entry("call", "four", "x", params=b"[" * 5_000 + b"]" * 5_000))
    log.record(log.entry("call", "five", "x"))
    await log.flush()
    told = [(row.actor, row.detail) for row in await rows(store, kind="call")]
    assert len(told) == 5
    assert next(actor for actor, detail in told if detail is None) == "one"
    assert sum('"unreadable":true' in (detail or "") for _, detail in told) >= 2
    assert await is_sound(opener, store)


async def test_what_is_told_after_the_end_is_counted_as_lost(store, opener, caplog):
    async with opener.new_log(store) as log:
        pass
    log.record(log.entry("call", "bot", "x"))
    assert log.lost == 1
    with pytest.raises(StoreUnavailable):
        await log.intent(log.entry("intent", "bot", "x"))


async def test_what_is_told_while_the_chain_is_closed_is_stored(store, opener, monkeypatch):
    leave = store.audit.leave

    async def leave_late(*given: object) -> None:
        log.record(log.entry("call", "bot", "before"))
        await leave(*given)
        log.record(log.entry("call", "bot", "after"))

    async with opener.new_log(store) as log:
        monkeypatch.setattr(store.audit, "leave", leave_late)
    assert [row.action for row in await rows(store, kind="call")] == ["before", "after"]
    assert log.lost == 0
    assert await is_sound(opener, store)


@pytest.mark.parametrize(
    "failure", [StoreUnavailable("away"), ValueError("new"), asyncio.CancelledError()], ids=repr
)
async def test_a_chain_that_cannot_be_closed_counts_what_it_has_not_stored(
    store, opener, monkeypatch, caplog, failure
):
    """Whatever stops it: the store that is away, a new kind of error, or a cancellation."""

    async def fail(*given: object) -> None:
        log.record(log.entry("call", "bot", "x"))
        monkeypatch.setattr(store.audit, "append", stay)
        raise failure

    async def stay(*given: object, **more: object) -> None:
        await asyncio.Event().wait()

    with suppress(ValueError, asyncio.CancelledError):
        async with opener.new_log(store) as log:
            monkeypatch.setattr(store.audit, "leave", fail)
    assert (log.lost, len(log._tasks)) == (1, 0)
    assert "not be stored before the end: 1" in caplog.text
    log.record(log.entry("call", "bot", "x"))
    assert log.lost == 2


async def test_a_store_that_fails_in_a_new_way_is_no_store(store, opener, monkeypatch, caplog):
    log = await opener.log(store)
    await log.flush()

    async def broken(*_: object, **__: object) -> None:
        raise LookupError("nobody expects this")

    with monkeypatch.context() as patched:
        patched.setattr(store.audit, "append", broken)
        with pytest.raises(StoreUnavailable):
            await log.intent(log.entry("intent", "bot", "x"))
        assert log.is_failing
    async with asyncio.timeout(BOUND):
        await log.flush()
    assert (log.is_failing, log.waiting, log.lost) == (False, 0, 0)
    assert await is_sound(opener, store)


@pytest.mark.bulk
async def test_many_short_lives_end(store, opener):
    """Each closes while its own timer may be ringing."""
    async with asyncio.timeout(60):
        for turn in range(60):
            async with opener.new_log(store) as log:
                log.record(log.entry("call", "bot", "x"))
                await asyncio.sleep(turn / 1000)
    assert await is_sound(opener, store)


@pytest.mark.req("J-OUTCOMES")
async def test_rows_of_an_older_version_are_read_as_they_were_written(store, opener):
    log = await opener.log(store)
    log.record(log.entry("call", "bot", "tools/call", outcome="success"))
    log.record(log.entry("call", "bot", "tools/call", outcome=OutcomeName.OK))
    await log.flush()
    assert [row.outcome for row in await rows(store, kind="call")] == ["success", "ok"]
    assert [row.outcome for row in await rows(store, outcome="success")] == ["success"]


async def test_a_long_page_is_encoded_on_the_loop_a_few_rows_a_turn(store, opener, monkeypatch):
    """Rows that a thread encodes keep the loop from the interpreter until all of them are done."""
    log = await opener.log(store)
    await log.flush()
    turn, loops_own = 0, threading.get_ident()
    where: Counter[tuple[int, int]] = Counter()
    encode = entries.encode_row

    def noted(*entry):
        where[threading.get_ident(), turn] += 1
        return encode(*entry)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(entries, "encode_row", noted)
    counting = asyncio.create_task(count_turns())
    for number in range(1_000):
        log.record(log.entry("call", "bot", "tools/call", target=f"t{number}"))
    await asyncio.wait_for(log.flush(), BOUND)
    counting.cancel()
    assert where.total() == 1_000
    assert {thread for thread, _ in where} == {loops_own}
    assert max(where.values()) <= 100
    assert await is_sound(opener, store)


async def test_rows_are_encoded_before_their_page_is_due(store, opener, monkeypatch):
    """A page that is encoded when it is due holds up all calls of that moment."""
    log = await opener.log(store)
    await log.flush()
    encoded, encode = Counter[str](), entries.encode_row

    def noted(row):
        encoded[row[3]] += 1
        return encode(row)

    monkeypatch.setattr(entries, "encode_row", noted)
    for number in range(100):
        log.record(log.entry("call", "bot", "tools/call", target=f"t{number}"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert encoded["call"] == 96  # all but a few that wait for more
    assert log.waiting == 100
    reference = await log.intent(log.entry("intent", "bot", "tools/call", target="risky"))
    log.record(log.entry("outcome", "bot", "tools/call", outcome="ok", closes=reference))
    await log.flush()
    (intent,) = await rows(store, kind="intent")
    assert reference == f"{log.writer}:{intent.seq}"
    assert encoded == {"call": 100, "intent": 1, "outcome": 1}
    assert await is_sound(opener, store)


async def cut_last_page(dump, writer: str) -> None:
    await dump.run(
        f"DELETE FROM audit_pages WHERE writer = '{writer}' AND last_seq ="
        f" (SELECT max(last_seq) FROM audit_pages WHERE writer = '{writer}')"
    )


def noted(opener) -> int:
    """How far the checkpoint says that the only chain goes."""
    return max((point.seq for point in opener.checkpoints.all()), default=0)


async def test_the_last_row_has_a_checkpoint_soon_and_a_cut_tail_shows(store, opener, dump):
    log = await opener.log(store)
    await log.flush()
    for count in range(3):  # one soon after the other: most have a checkpoint just before them
        log.record(log.entry("call", "bot", "tools/call", target=f"t{count}"))
        async with asyncio.timeout(BOUND):
            while not await rows(store, target=f"t{count}"):
                pass
    last = (await rows(store))[-1].seq
    async with asyncio.timeout(BOUND):  # no further row comes, nobody flushes
        while noted(opener) < last:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)
    assert await is_sound(opener, store)
    await cut_last_page(dump, log.writer)
    verdict = await verify(store.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all())
    assert [finding.seq for finding in verdict.findings] == [last]


async def test_an_intent_has_its_checkpoint_before_it_is_durable(store, opener, dump):
    log = await opener.log(store)
    await log.flush()
    for _ in range(3):
        reference = await log.intent(log.entry("intent", "bot", "tools/call"))
        seq = int(reference.rpartition(":")[2])
        assert noted(opener) >= seq
    await cut_last_page(dump, log.writer)
    verdict = await verify(store.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all())
    assert [finding.seq for finding in verdict.findings] == [seq]


async def test_the_checkpoint_of_an_intent_reaches_the_disk_soon(store, opener, monkeypatch):
    log = await opener.log(store)
    await log.flush()
    synced: list[int] = []
    monkeypatch.setattr(checkpoints, "_sync", lambda _: synced.append(noted(opener)))
    reference = await log.intent(log.entry("intent", "bot", "tools/call"))
    seq = int(reference.rpartition(":")[2])
    async with asyncio.timeout(BOUND):  # no further row comes, nobody flushes
        while seq not in synced:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)


async def test_without_a_checkpoint_no_intent_is_durable(store, opener, tmp_path, caplog):
    log = await opener.log(store)
    await log.flush()
    folder = tmp_path / "data" / "audit"
    away = folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="checkpoint"):
            await log.intent(log.entry("intent", "bot", "tools/call"))
    assert caplog.text.count("the audit's checkpoint cannot be written") == 1
    folder.unlink()
    away.rename(folder)
    await log.intent(log.entry("intent", "bot", "tools/call"))
    assert await is_sound(opener, store)


async def test_a_checkpoint_that_power_failed_under_leaves_the_one_before(store, opener, tmp_path):
    log = await opener.log(store)
    for _ in range(4):
        await log.intent(log.entry("intent", "bot", "tools/call"))
    (path,) = (tmp_path / "data" / "audit").glob("*.checkpoint")
    lines = path.read_bytes().splitlines(keepends=True)
    newest = max(range(2), key=lambda place: json.loads(lines[place])["seq"])
    lines[newest] = lines[newest][:100] + b"\0" * (len(lines[newest]) - 100)
    path.write_bytes(b"".join(lines))
    assert noted(opener) == 4
    assert await is_sound(opener, store)


@pytest.mark.req("R-SUPERVISE")
async def test_while_its_task_is_down_intents_are_refused_and_nothing_is_lost(store, opener):
    log = await opener.log(store)
    await log.flush()
    with pytest.MonkeyPatch.context() as patch:

        def fail() -> None:
            raise LookupError("mislaid")

        patch.setattr(log, "_next_batch", fail)
        async with asyncio.timeout(BOUND):
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await log.intent(log.entry("intent", "bot", "tools/call"))
        assert log.is_failing
        log.record(log.entry("call", "bot", "tools/call"))
    async with asyncio.timeout(BOUND):
        await log.flush()
        while log.is_failing:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await log.intent(log.entry("intent", "bot", "tools/call"))
    assert len(await rows(store, kind="call")) == 1
    assert log.lost == 0
