"""What is too old leaves the audit, once a day."""

import asyncio
from functools import partial

import pytest
from tests.registry.toolbox import until

from mcp_junction.audit.maintenance import AGAIN, FIRST, retire_daily
from mcp_junction.audit.verify import verify
from mcp_junction.errors import StoreUnavailable
from mcp_junction.store.retention import DAY
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock

NOW = 1_000 * DAY
OLD = NOW - 91 * DAY
AGING = NOW - 89.5 * DAY


async def written(opener, store, at: float, count: int) -> str:
    """A chain of that age, whose writer has ended."""
    log = opener.new_log(store, now=lambda: at)
    async with log:
        for _ in range(count):
            log.record(log.entry("call", "ann", "tools/call"))
    return log.writer


@pytest.fixture
async def scheduled(opener, store):
    """The clock of a schedule that keeps 90 days, and what there is of each chain."""
    clock, tasks = FakeClock(), TaskScope("test")
    log = await opener.log(store, now=lambda: NOW + clock.now())

    def begin() -> None:
        keys = partial(opener.vault.derive_keys, "audit")
        how = (90, store.audit, log, opener.checkpoints, keys, clock, lambda: NOW + clock.now())
        tasks.spawn(retire_daily(*how))

    async def left(writer: str) -> bool:
        return writer in await store.audit.chains()

    yield clock, begin, left
    await tasks.close()


async def gone(left, writer: str) -> None:
    async with asyncio.timeout(20):
        while await left(writer):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)


async def test_old_rows_leave_soon_after_the_start_and_then_once_a_day(opener, store, scheduled):
    clock, begin, left = scheduled
    old, aging = await written(opener, store, OLD, 3), await written(opener, store, AGING, 3)
    begin()
    await clock.advance(FIRST - 1)
    assert await left(old)
    await clock.advance(1)
    await gone(left, old)
    await until(lambda: clock.sleepers)
    assert await left(aging), "it is not yet that old"
    await clock.advance(DAY - 1)
    assert await left(aging)
    await clock.advance(1)
    await gone(left, aging)
    verdict = await verify(store.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all())
    assert verdict.findings == []


async def test_while_the_store_says_no_it_is_tried_again(opener, store, scheduled, monkeypatch):
    clock, begin, left = scheduled
    old = await written(opener, store, OLD, 1)
    real, asked = store.audit.oldest_ends, []

    async def once_away(before: float):
        asked.append(before)
        if len(asked) == 1:
            raise StoreUnavailable("away")
        return await real(before)

    monkeypatch.setattr(store.audit, "oldest_ends", once_away)
    begin()
    await clock.advance(FIRST)
    assert len(asked) == 1
    assert await left(old)
    await clock.advance(AGAIN)
    await gone(left, old)


@pytest.mark.parametrize(("days", "running"), [(90, 3), (0, 0)])
async def test_the_service_keeps_to_its_setting(tmp_path, vault, days, running):
    from mcp_junction.app import Junction
    from mcp_junction.cli.serve import _forget
    from mcp_junction.cli.storage import Storage
    from mcp_junction.config.load import without_file
    from mcp_junction.store.store import default_url, open_store
    from mcp_junction.vault.key_file import KeyFile

    clock = FakeClock()
    async with await open_store(default_url(tmp_path), vault) as store:
        storage = Storage(store, vault, tmp_path, KeyFile({}, tmp_path))
        config = without_file({}, {"audit_retention_days": days})
        async with (
            Junction(config, starts=False, clock=clock) as junction,
            storage.audit_log() as log,
        ):
            before = clock.sleepers
            _forget(config.settings.audit_retention_days, storage, log, junction)
            await clock.advance(1)
            assert clock.sleepers - before == running
