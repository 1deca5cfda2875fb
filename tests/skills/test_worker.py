"""The model in a process of its own: what it may know, how it ends, and what its end means."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from mcp_junction.errors import ModelUnavailable
from mcp_junction.skills.classifier import Subject, taxonomy
from mcp_junction.skills.features import make_text
from mcp_junction.skills.offline import LocalModel
from mcp_junction.skills.worker import ModelWorker, WorkerProcess
from mcp_junction.tasks import TaskScope

BOUND = 30
TEXTS = ["send email. Send an email message", "get forecast. The weather of a place"]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@pytest.fixture
async def tasks():
    scope = TaskScope("test")
    yield scope
    await scope.close()


async def until(is_so) -> None:
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether a process runs: one that nobody has taken notice of yet does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


async def test_it_answers_as_the_model_does_in_this_process(tasks):
    worker, model = ModelWorker(tasks), LocalModel()
    vectors = await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    assert vectors == model.embed(TEXTS)
    texts = [make_text(*text.split(". ")) for text in TEXTS]
    subjects = [Subject("t", *both) for both in zip(texts, vectors, strict=True)]
    said = await asyncio.wait_for(worker.classify(subjects, taxonomy()), BOUND)
    assert said == model.classify(subjects, taxonomy())
    assert [one.primary for one in said] == ["communication", "weather-environment"]
    assert await asyncio.wait_for(worker.average(vectors), BOUND) == model.average(vectors)
    assert await worker.embed([]) == []
    pooled = await asyncio.wait_for(worker.pool(texts[0], texts), BOUND)
    assert pooled == model.pool(texts[0], texts)
    said = await asyncio.wait_for(worker.classify(subjects, taxonomy(), pooled), BOUND)
    assert said == model.classify(subjects, taxonomy(), pooled)
    assert await worker.cluster([vectors[0]] * 3, ["a", "b", "c"]) == [[0, 1, 2]]


async def test_jobs_asked_side_by_side_are_each_answered_with_their_own(tasks):
    worker, model = ModelWorker(tasks), LocalModel()
    texts = [f"tool number {n} does something" for n in range(30)]
    async with asyncio.timeout(BOUND):
        found = await asyncio.gather(*(worker.embed([text]) for text in texts))
    assert [one for (one,) in found] == model.embed(texts)


@linux
async def test_it_inherits_no_variable_and_no_file_of_ours(tasks, monkeypatch, tmp_path):
    monkeypatch.setenv("MCP_CREDENTIAL_KEY", "the secret of the test")
    with (tmp_path / "open").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        worker = ModelWorker(tasks)
        await asyncio.wait_for(worker.embed(["x"]), BOUND)
    process = Path(f"/proc/{worker.pid}")
    if os.geteuid() == 0:  # nobody else may read it, not even who started it
        assert b"secret" not in (process / "environ").read_bytes()
        assert b"MCP_" not in (process / "environ").read_bytes()
        links = [os.readlink(fd) for fd in (process / "fd").iterdir()]
        assert not [link for link in links if str(tmp_path) in link]
    else:
        with pytest.raises(PermissionError):
            (process / "environ").read_bytes()
    assert b"secret" not in (process / "cmdline").read_bytes()


@linux
async def test_it_ends_when_it_is_idle_and_starts_again_for_the_next_job(tasks):
    worker = ModelWorker(tasks, idle=0.05)
    assert worker.pid is None, "nothing is started before there is something to do"
    first = await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    pid = worker.pid
    await until(lambda: worker.pid is None)
    await until(lambda: not is_there(pid))
    assert await asyncio.wait_for(worker.embed(TEXTS), BOUND) == first
    assert worker.failures == 0


@linux
async def test_it_ends_with_the_scope_that_owns_it():
    tasks = TaskScope("test")
    worker = ModelWorker(tasks)
    await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    pid = worker.pid
    await asyncio.wait_for(tasks.close(), BOUND)
    assert not is_there(pid)


@pytest.mark.req("AG-US3-AC4", "K-3")
async def test_a_crash_fails_the_job_at_hand_and_the_next_one_gets_a_new_process(tasks, caplog):
    worker = ModelWorker(tasks, first_pause=0.01)
    first = await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    pid = worker.pid
    os.kill(pid, signal.SIGSTOP)
    lost = asyncio.ensure_future(worker.embed(["never answered"]))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ModelUnavailable, match="lost"):
        await asyncio.wait_for(lost, BOUND)
    assert await asyncio.wait_for(worker.embed(TEXTS), BOUND) == first
    assert worker.failures == 1
    assert worker.pid != pid
    assert "started again" in caplog.text


@linux
async def test_a_process_that_hangs_is_ended_and_counts_as_lost(tasks):
    worker = ModelWorker(tasks, patience=10, first_pause=0.01)
    await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    pid = worker.pid
    os.kill(pid, signal.SIGSTOP)
    worker._patience = 0.05
    with pytest.raises(ModelUnavailable):
        await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    await until(lambda: not is_there(pid))


async def test_one_that_cannot_be_started_is_tried_again_later_each_time(tasks, monkeypatch):
    pauses, real = [], asyncio.sleep

    async def noted(seconds):
        if seconds >= 0.5:
            pauses.append(seconds)
        await real(0)

    async def refuse():
        raise OSError(12, "no memory")

    worker = ModelWorker(tasks, start=refuse)
    monkeypatch.setattr("mcp_junction.skills.worker.asyncio.sleep", noted)
    for _ in range(10):
        with pytest.raises(ModelUnavailable, match="no memory"):
            await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    monkeypatch.undo()
    worker._in_a_row, worker._start = 0, WorkerProcess.start
    assert len(await asyncio.wait_for(worker.embed(TEXTS), BOUND)) == 2


async def test_what_the_model_refuses_fails_that_job_alone(tasks):
    worker = ModelWorker(tasks)
    bad = [Subject("x", make_text("x"), b"\0" * size) for size in (8, 12)]
    with pytest.raises(ModelUnavailable, match="ValueError"):
        await asyncio.wait_for(worker.classify(bad, taxonomy()), BOUND)
    pid = worker.pid
    await asyncio.wait_for(worker.embed(TEXTS), BOUND)
    assert worker.pid == pid
    assert worker.failures == 0


async def test_a_job_that_nobody_waits_for_any_more_holds_up_no_other(tasks):
    worker = ModelWorker(tasks)
    jobs = [asyncio.ensure_future(worker.embed([f"text {n}"])) for n in range(5)]
    await asyncio.sleep(0)
    for job in jobs[:4]:
        job.cancel()
    assert len(await asyncio.wait_for(jobs[4], BOUND)) == 1
    assert worker.failures == 0


OWNER = """
import asyncio
from mcp_junction.skills.worker import ModelWorker
from mcp_junction.tasks import TaskScope

async def main():
    worker = ModelWorker(TaskScope("owner"))
    await worker.embed(["hello"])
    print(worker.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@linux
@pytest.mark.parametrize("is_busy", [False, True])
async def test_it_goes_with_a_service_that_is_killed(is_busy):
    piped = asyncio.subprocess.PIPE
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=piped)
    async with asyncio.timeout(BOUND):
        pid = int(await owner.stdout.readline())
        if is_busy:
            os.kill(pid, signal.SIGSTOP)  # it does not see the end of its socket
        owner.kill()
        await owner.wait()
    await until(lambda: not is_there(pid))
