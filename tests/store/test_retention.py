"""Old rows are removed regularly, also when the store has failed."""

import logging

import pytest

from mcp_junction.errors import StoreUnavailable
from mcp_junction.store.retention import DAY, remove_regularly
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock


@pytest.mark.parametrize(("how", "next_attempt"), [({"again": 60.0}, 60.0), ({}, DAY)])
async def test_after_a_failure_it_is_tried_again_and_the_log_says_so(how, next_attempt, caplog):
    clock, tasks, times = FakeClock(), TaskScope("test"), []

    async def remove() -> None:
        times.append(clock.now())
        if len(times) == 1:
            raise StoreUnavailable("it is away")

    tasks.spawn(remove_regularly("keys", remove, clock, **how))
    await clock.advance(next_attempt + DAY)
    await tasks.close()
    assert times == [0.0, next_attempt, next_attempt + DAY]
    (told,) = caplog.records
    assert (told.name, told.levelno) == ("mcp_junction.store", logging.WARNING)
    assert told.getMessage() == "old keys cannot be removed now: it is away"
