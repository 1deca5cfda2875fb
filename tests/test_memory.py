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


@pytest.mark.parametrize(
    ("variable", "value", "number"),
    [
        ("MALLOC_ARENA_MAX", "16", -8),
        ("MALLOC_MMAP_THRESHOLD_", "131072", -3),
        ("MALLOC_TRIM_THRESHOLD_", "131072", -1),
        ("GLIBC_TUNABLES", "glibc.malloc.check=1:glibc.malloc.arena_max=16", -8),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072", -3),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072:glibc.rtld.nns=4", -1),
    ],
)
def test_what_the_operator_has_set_for_the_allocator_stays(monkeypatch, variable, value, number):
    set_to = {}
    monkeypatch.setattr(memory, "_find", lambda _: set_to.__setitem__)
    monkeypatch.setenv(variable, value)
    memory.tune_allocator()
    assert set_to.keys() == {-8, -3, -1} - {number}
    assert all(chosen > 0 for chosen in set_to.values())
