"""ModelWorker: runs the Model in a process of its own, which exists only while there is work.

WorkerProcess is one run of that process (``worker_main.py``), from its start to its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeVar

import mcp_junction
from mcp_junction.errors import ModelUnavailable
from mcp_junction.search.vectors import Ranked, RankingJob
from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill
from mcp_junction.skills.features import ToolText
from mcp_junction.skills.worker_messages import (
    HEAD,
    Answer,
    Average,
    Classify,
    Cluster,
    Embed,
    Failed,
    Groups,
    Job,
    PoolServer,
    Vectors,
    Verdicts,
    decode_answer,
    encode_frame,
    frame_size,
)
from mcp_junction.tasks import TaskScope, resolve

log = logging.getLogger("mcp_junction.skills")

# Imported, not run with -m: so it is found where we are, however we were found.
_PROGRAM: Final = (
    "import os, sys; sys.path += sys.argv[2].split(os.pathsep);"
    " from mcp_junction.skills.worker_main import main; main(int(sys.argv[1]), int(sys.argv[3]))"
)
_ENVIRONMENT: Final = {
    "PATH": os.defpath,
    # One thread: the processors are not ours alone, and each thread of BLAS takes memory.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
_TAIL: Final = 5
_LONGEST_LINE: Final = 500
_LOOKS: Final = 500


class WorkerProcess:
    """A running worker process, and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: _Stderr) -> None:
        self._process = process
        self._stderr = stderr
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._open: list[asyncio.BaseTransport] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, niceness: int = 10) -> WorkerProcess:
        """Start a process of this niceness and connect to it. Raises OSError."""
        async with AsyncExitStack() as on_failure:
            ours, theirs = socket.socketpair()
            on_failure.callback(ours.close)
            with theirs:
                worker = cls(_spawn(theirs, niceness), _Stderr())
            on_failure.push_async_callback(worker.end)
            await worker._connect(ours)
            on_failure.pop_all()
        return worker

    async def _connect(self, ours: socket.socket) -> None:
        assert self._process.stderr is not None
        loop = asyncio.get_running_loop()
        errors, _ = await loop.connect_read_pipe(lambda: self._stderr, self._process.stderr)
        self._open.append(errors)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._open.append(self._writer.transport)

    async def ask(self, job: Job) -> Answer:
        """Send a job and wait for its answer. Raises OSError, EOFError or ValueError."""
        self._writer.write(encode_frame(job))
        await self._writer.drain()
        head = await self._reader.readexactly(HEAD.size)
        return decode_answer(await self._reader.readexactly(frame_size(head)))

    async def end(self) -> None:
        """Kill the process; it has no state to lose."""
        try:
            self._process.kill()
            for _ in range(_LOOKS):  # process.wait() would block the loop while its memory is freed
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(0.01)
        finally:
            for transport in self._open:
                transport.close()

    def describe_end(self) -> str:
        """Describe how the process ended, with the end of its stderr, for a message."""
        status = self._process.poll()
        how = "it runs" if status is None else f"it ended with {status}"
        return f"{how}: {' / '.join(self._stderr.tail)}" if self._stderr.tail else how


def _spawn(theirs: socket.socket, niceness: int) -> subprocess.Popen[bytes]:
    """Start the program, in the loop's thread: the worker dies with the thread that starts it."""
    path = os.pathsep.join([str(Path(mcp_junction.__file__).parents[1]), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _PROGRAM, str(os.getpid()), path, str(niceness)],
        stdin=theirs.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=_ENVIRONMENT,
    )


class _Stderr(asyncio.Protocol):
    """Drains the worker's stderr and keeps its last lines."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines[-_TAIL:]:
            words = line[:_LONGEST_LINE].decode(errors="replace").strip()
            if words:
                self.tail.append(words)
                log.debug("the model's process says: %s", words)


IDLE: Final = 5.0
"""Seconds without a job after which the process ends."""
PATIENCE: Final = 120.0
"""Seconds that a job may take before its process counts as stuck."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0

A = TypeVar("A", Vectors, Verdicts, Groups, Ranked)


class ModelWorker:
    """A Model that sends its jobs to a worker process, which it starts and ends."""

    def __init__(
        self,
        tasks: TaskScope,
        *,
        idle: float = IDLE,
        patience: float = PATIENCE,
        first_pause: float = FIRST_PAUSE,
        start: Callable[[], Awaitable[WorkerProcess]] = WorkerProcess.start,
    ) -> None:
        self._tasks = tasks
        self._idle = idle
        self._patience = patience
        self._first_pause = first_pause
        self._start = start
        self._jobs: deque[tuple[Job, asyncio.Future[Answer]]] = deque()
        self._has_jobs = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._process: WorkerProcess | None = None
        self._in_a_row = 0
        self.failures = 0
        """How often a process was lost or could not be started."""

    @property
    def pid(self) -> int | None:
        """The id of the running process, if there is one."""
        return self._process.pid if self._process is not None else None

    # -- the Model

    async def embed(self, texts: Sequence[str], file: str = "") -> list[bytes]:
        """Embed texts by the static table, or by MiniLM with its weights in this file."""
        if not texts:
            return []
        return (await self._ask(Embed(list(texts), file), Vectors)).vectors

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill], pooled: bytes = b""
    ) -> list[SkillVerdict | None]:
        return (await self._ask(Classify(list(subjects), list(skills), pooled), Verdicts)).verdicts

    async def pool(self, server: ToolText, tools: Sequence[ToolText]) -> bytes:
        return (await self._ask(PoolServer(server, list(tools)), Vectors)).vectors[0]

    async def cluster(self, vectors: Sequence[bytes], servers: Sequence[str]) -> list[list[int]]:
        return (await self._ask(Cluster(list(vectors), list(servers)), Groups)).groups

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        return (await self._ask(Average(list(vectors)), Vectors)).vectors[0]

    async def rank(self, job: RankingJob) -> Ranked:
        """Have the process hold or drop vectors, or rank by them. Raises ModelUnavailable."""
        return await self._ask(job, Ranked)

    async def _ask(self, job: Job, kind: type[A]) -> A:
        """Queue a job and wait for its answer. Raises ModelUnavailable."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, done))
        self._has_jobs.set()
        if self._owner is None or self._owner.done():
            self._owner = self._tasks.spawn(self._do_jobs())
        answer = await done
        if isinstance(answer, Failed):
            raise ModelUnavailable(f"the model failed: {answer.reason}")
        if not isinstance(answer, kind):
            raise ModelUnavailable(f"the model answered with {type(answer).__name__}")
        return answer

    # -- the owner of the process

    async def _do_jobs(self) -> None:
        """Run worker processes until there was no job for a while."""
        try:
            while self._jobs:
                try:
                    await self._run()
                except (OSError, EOFError, ValueError, TimeoutError) as error:
                    self._in_a_row += 1
                    self.failures += 1
                    words = f"the model's process was lost ({error!r}; {self._describe_end()})"
                    log.warning("%s; tools wait until it is started again", words)
                    self._fail_all(words)
                finally:
                    await self._end()
        finally:
            self._fail_all("Junction is ending")

    async def _run(self) -> None:
        """Start a process and send it jobs. Raises the reason why it failed."""
        if self._in_a_row:
            pause = self._first_pause * 2.0 ** min(self._in_a_row - 1, 16)
            await asyncio.sleep(min(pause, LONGEST_PAUSE))
        self._process = await self._start()
        while (found := await self._next()) is not None:
            job, done = found
            async with asyncio.timeout(self._patience):
                answer = await self._process.ask(job)
            self._in_a_row = 0
            self._jobs.popleft()
            resolve(done, answer)

    async def _next(self) -> tuple[Job, asyncio.Future[Answer]] | None:
        """Wait for the next job, which stays first in the queue; None when there is none."""
        while True:
            while self._jobs and self._jobs[0][1].done():
                self._jobs.popleft()  # its caller was cancelled
            if self._jobs:
                return self._jobs[0]
            self._has_jobs.clear()
            try:
                async with asyncio.timeout(self._idle):
                    await self._has_jobs.wait()
            except TimeoutError:
                return None

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    def _describe_end(self) -> str:
        return self._process.describe_end() if self._process is not None else "it did not start"

    def _fail_all(self, reason: str) -> None:
        jobs, self._jobs = self._jobs, deque()
        for _, done in jobs:
            if not done.done():
                done.set_exception(ModelUnavailable(reason))
