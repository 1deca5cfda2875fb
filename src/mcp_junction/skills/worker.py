"""ModelWorker: the Model in a process of its own, which runs only while there is work for it.

numpy, the tokenizer and the weights take 60 MB and a second of work; in the service they would hold
up every call. One task owns the process: it starts it for the first job, hands it the jobs one by
one, and ends it when none has come for a while. A process that crashes, hangs or cannot be started
fails the jobs at hand, and the next one waits a little longer each time before it is started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from mcp_junction.errors import ModelUnavailable
from mcp_junction.skills.classifier import Subject, Verdict
from mcp_junction.skills.jobs import (
    Answer,
    Average,
    Classify,
    Embed,
    Failed,
    Job,
    Vectors,
    Verdicts,
)
from mcp_junction.skills.taxonomy import Skill
from mcp_junction.skills.worker_process import WorkerProcess
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.skills")

IDLE: Final = 5.0
"""Seconds without a job after which the process ends."""
PATIENCE: Final = 120.0
"""Seconds that a job may take before its process counts as stuck."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0

A = TypeVar("A", Vectors, Verdicts)


class ModelWorker:
    """A Model whose jobs are done by a worker process."""

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
        """The process that runs now, if one does."""
        return self._process.pid if self._process is not None else None

    # -- the Model

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if not texts:
            return []
        return (await self._ask(Embed(list(texts)), Vectors)).vectors

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[Skill]
    ) -> list[Verdict | None]:
        return (await self._ask(Classify(list(subjects), list(skills)), Verdicts)).verdicts

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        return (await self._ask(Average(list(vectors)), Vectors)).vectors[0]

    async def _ask(self, job: Job, kind: type[A]) -> A:
        """Have a job done, and wait for its answer. Raises ModelUnavailable."""
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
        """Run worker processes until no job is left for a while."""
        try:
            while self._jobs:
                try:
                    await self._run()
                except (OSError, EOFError, ValueError, TimeoutError) as error:
                    self._in_a_row += 1
                    self.failures += 1
                    words = f"the model's process was lost ({error!r}; {self._last_words()})"
                    log.warning("%s; tools wait until it is started again", words)
                    self._fail_all(words)
                finally:
                    await self._end()
        finally:
            self._fail_all("Junction is ending")

    async def _run(self) -> None:
        """Start a process and hand it jobs. Raises what kept it from answering."""
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
            if not done.done():
                done.set_result(answer)

    async def _next(self) -> tuple[Job, asyncio.Future[Answer]] | None:
        """The job to do next, which stays the first in the queue; None when there is none."""
        while True:
            while self._jobs and self._jobs[0][1].done():
                self._jobs.popleft()  # nobody waits for it any more
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

    def _last_words(self) -> str:
        return self._process.last_words() if self._process is not None else "it did not start"

    def _fail_all(self, reason: str) -> None:
        jobs, self._jobs = self._jobs, deque()
        for _, done in jobs:
            if not done.done():
                done.set_exception(ModelUnavailable(reason))
