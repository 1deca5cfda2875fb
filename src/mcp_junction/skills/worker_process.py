"""WorkerProcess: one running worker (``worker_main.py``), from its start to its end.

It inherits no environment of ours, no file but one end of a socket and a pipe for its stderr, and
no secret. It is not restarted from here: that is ``worker.py``'s to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final

import mcp_junction
from mcp_junction.skills.jobs import HEAD, Answer, Job, decode_answer, frame, size_of

log = logging.getLogger("mcp_junction.skills")

# Imported, not run with -m: so it is found where we are, however we were found.
_PROGRAM: Final = (
    "import os, sys; sys.path += sys.argv[2].split(os.pathsep);"
    " from mcp_junction.skills.worker_main import main; main(int(sys.argv[1]))"
)
_ENVIRONMENT: Final = {
    "PATH": os.defpath,
    # One thread: the processors are not ours alone, and each thread of BLAS takes memory.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_TAIL: Final = 5
_LONGEST_LINE: Final = 500
_LOOKS: Final = 500


class WorkerProcess:
    """A worker that runs, and the socket to talk to it."""

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
    async def start(cls) -> WorkerProcess:
        """Start one. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(theirs)
            worker = cls(process, _Stderr())
            try:
                await worker._connect(ours)
            except BaseException:
                await worker.end()
                raise
        except BaseException:
            ours.close()
            raise
        return worker

    async def _connect(self, ours: socket.socket) -> None:
        assert self._process.stderr is not None
        loop = asyncio.get_running_loop()
        errors, _ = await loop.connect_read_pipe(lambda: self._stderr, self._process.stderr)
        self._open.append(errors)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._open.append(self._writer.transport)

    async def ask(self, job: Job) -> Answer:
        """Have a job done. Raises OSError, EOFError or ValueError when it is not answered."""
        self._writer.write(frame(job))
        await self._writer.drain()
        head = await self._reader.readexactly(HEAD.size)
        return decode_answer(await self._reader.readexactly(size_of(head)))

    async def end(self) -> None:
        """End it, whatever it does; it holds nothing that could be lost."""
        try:
            self._process.kill()
            for _ in range(_LOOKS):  # to wait until its memory is freed would hold up the loop
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(0.01)
        finally:
            for transport in self._open:
                transport.close()

    def last_words(self) -> str:
        """How it ended, and the end of its stderr, for a message."""
        status = self._process.poll()
        how = "it runs" if status is None else f"it ended with {status}"
        return f"{how}: {' / '.join(self._stderr.tail)}" if self._stderr.tail else how


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the program. In the loop's thread: the worker goes with the thread it was made in."""
    path = os.pathsep.join([str(Path(mcp_junction.__file__).parents[1]), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _PROGRAM, str(os.getpid()), path],
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
