"""Free memory goes back to the system where the C library can do that."""

import asyncio
import sys
from pathlib import Path

import pytest

from mcp_junction import memory

STATUS = Path("/proc/self/statm")


@pytest.mark.skipif(not STATUS.exists(), reason="there is no /proc")
async def test_what_was_freed_leaves_the_process():
    held = [bytes(60_000) + b"\1" * 40_000 for _ in range(1_000)]  # each too small to be mapped
    kept = held[::100]  # what is between is free, and not at the end
    del held
    before = resident()
    await memory.return_free_memory()
    assert before - resident() > 30 * 1024 * 1024
    assert len(kept) == 10


def resident() -> int:
    return int(STATUS.read_text().split()[1]) * 4096


async def test_elsewhere_nothing_is_done(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "ctypes", None)  # importing it would fail
    memory.tune_allocator()
    async with asyncio.timeout(10):
        await memory.return_free_memory()


def test_what_the_operator_has_set_for_the_allocator_stays(monkeypatch):
    set_to = {}
    monkeypatch.setattr(memory, "_find", lambda _: set_to.__setitem__)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "16")
    memory.tune_allocator()
    arena_max, trim_threshold = -8, -1
    assert arena_max not in set_to
    assert set_to[trim_threshold] > 0
