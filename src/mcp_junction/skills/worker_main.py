"""The worker process: runs the model of skills outside the service.

``worker.py`` starts it with a socket as its standard input and nearly no environment. It reads one
job at a time, answers it, and ends when the socket is closed. It opens no file but the model's and
no connection, and dies with its parent, also when that is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

from mcp_junction.memory import return_free_memory_now
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
    decode_job,
    encode_frame,
    frame_size,
)

if TYPE_CHECKING:
    from mcp_junction.skills.offline import LocalModel

_SET_PDEATHSIG, _SET_DUMPABLE = 1, 4
_LARGE: Final = 256 * 1024
"""Bytes of a job after which free memory is given back: there may be no other for long."""


def serve(sock: socket.socket, model: LocalModel) -> None:
    """Answer jobs until the other end closes the socket."""
    with sock.makefile("rb") as jobs:
        while len(head := jobs.read(HEAD.size)) == HEAD.size:
            size = frame_size(head)
            body = jobs.read(size)
            if len(body) < size:
                return
            sock.sendall(encode_frame(answer(decode_job(body), model)))
            if size > _LARGE:
                del body
                return_free_memory_now()


def answer(job: Job, model: LocalModel) -> Answer:
    """Do one job; an exception becomes Failed."""
    try:
        match job:
            case Embed(texts, file):
                return Vectors(model.embed_with(file, texts) if file else model.embed(texts))
            case Classify(subjects, skills, pooled):
                return Verdicts(model.classify(subjects, skills, pooled))
            case PoolServer(server, tools):
                return Vectors([model.pool(server, tools)])
            case Cluster(vectors, servers):
                return Groups(model.cluster(vectors, servers))
            case Average(vectors):
                return Vectors([model.average(vectors)])
            case _:
                return model.ranker.answer(job)
    except Exception as error:  # noqa: BLE001 - whatever the model raises is the answer
        return Failed(repr(error)[:500])


def set_up_process(parent: int, niceness: int) -> None:
    """Tie this process to its parent's life, make it not dumpable, and lower its priority."""
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        if os.getppid() != parent:  # it died before that was set
            os._exit(1)
    os.nice(niceness)


def main(parent: int, niceness: int) -> None:
    """Run as a program: jobs come on standard input, which is a socket."""
    set_up_process(parent, niceness)
    from mcp_junction.skills.offline import LocalModel  # with numpy, at the lower priority

    try:
        serve(socket.socket(fileno=0), LocalModel())
    except (BrokenPipeError, ConnectionResetError):
        pass  # the service has ended
    os._exit(0)  # there is nothing to clean up
