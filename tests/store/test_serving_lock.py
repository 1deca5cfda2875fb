"""One serving process for a SQLite file: the second is refused, commands are not."""

import os
import signal
import subprocess
import sys
from argparse import Namespace

import pytest

from mcp_junction.cli import keys
from mcp_junction.cli.storage import open_storage
from mcp_junction.errors import UsageError
from mcp_junction.store.store import default_url, hold_serving_lock, sqlite_file

HOLD = """
import subprocess, sys
from pathlib import Path
from mcp_junction.store.store import hold_serving_lock
with hold_serving_lock(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that serves from `junction.db`, and has a child; its pid and the child's."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "data" / "junction.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        try:
            yield process
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def options(folder, store: str | None = None) -> Namespace:
    return Namespace(data_dir=str(folder), store=store)


async def test_a_second_serving_process_is_refused_and_told_of_the_first(holder, tmp_path):
    words = rf"served already, by the process {holder.pid}, since \d{{4}}-.*--data-dir or --store"
    with pytest.raises(UsageError, match=words):
        async with open_storage(options(tmp_path / "data"), serving=True):
            pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_the_lock_goes_with_its_process_however_that_ends(holder, tmp_path, how):
    """Its children, which may outlive it, have no part in the lock."""
    holder.send_signal(how)
    holder.wait(20)
    async with open_storage(options(tmp_path / "data"), serving=True) as storage:
        assert await storage.store.servers.all() == []


async def test_commands_go_on_beside_a_serving_process(holder, tmp_path, capsys):
    async with open_storage(options(tmp_path / "data")) as storage:
        assert await storage.store.servers.all() == []


def test_keys_are_made_beside_a_serving_process(holder, tmp_path, capsys):
    folder = str(tmp_path / "data")
    assert keys.run(["create", "--role", "agent", "--data-dir", folder]) == 0
    assert capsys.readouterr().out.startswith("jct_")


async def test_it_is_the_database_that_is_locked_by_whichever_way_it_is_reached(holder, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "data", target_is_directory=True)
    elsewhere = f"sqlite:///{tmp_path / 'link' / 'junction.db'}"
    with pytest.raises(UsageError, match="served already"):
        async with open_storage(options(tmp_path / "other", elsewhere), serving=True):
            pass
    another = default_url(tmp_path / "another")
    async with open_storage(options(tmp_path / "data", another), serving=True):
        pass


def test_other_stores_need_no_lock(tmp_path):
    assert sqlite_file("postgresql://somebody@/somewhere") is None
    assert sqlite_file(default_url(tmp_path)) == tmp_path / "junction.db"


def test_what_the_file_says_does_not_matter_for_who_has_the_lock(tmp_path):
    database = tmp_path / "junction.db"
    (tmp_path / "junction.db.serving").write_text('{"pid": 1, "since": "long ago"}')
    with hold_serving_lock(database):
        with (
            pytest.raises(UsageError, match=f"the process {os.getpid()}"),
            hold_serving_lock(database),
        ):
            pass
        (tmp_path / "junction.db.serving").write_text("?")
        with pytest.raises(UsageError, match="by another process"), hold_serving_lock(database):
            pass
    with hold_serving_lock(database):
        pass
