"""The worker process: computes with vectors, so that the service need not.

It is started by ``worker.py`` with a socket as its standard input and nearly no environment. It
reads one job at a time, answers it, and ends when the socket does. It opens no file but the
model's and no connection, and it goes with its parent, also when that is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import Final

from mcp_junction.skills.jobs import (
    HEAD,
    Answer,
    Average,
    Classify,
    Embed,
    Failed,
    Job,
    Vectors,
    Verdicts,
    decode_job,
    frame,
    size_of,
)
from mcp_junction.skills.model import LocalModel

_SET_PDEATHSIG, _SET_DUMPABLE = 1, 4
_NICENESS: Final = 10
"""Calls come first: on a busy machine this process gets what the others leave."""


def serve(sock: socket.socket, model: LocalModel) -> None:
    """Answer jobs until the other end closes."""
    with sock.makefile("rb") as jobs:
        while len(head := jobs.read(HEAD.size)) == HEAD.size:
            size = size_of(head)
            body = jobs.read(size)
            if len(body) < size:
                return
            sock.sendall(frame(answer(decode_job(body), model)))


def answer(job: Job, model: LocalModel) -> Answer:
    """Do one job; a failure is an answer, too."""
    try:
        match job:
            case Embed(texts):
                return Vectors(model.embed(texts))
            case Classify(subjects, skills):
                return Verdicts(model.classify(subjects, skills))
            case Average(vectors):
                return Vectors([model.average(vectors)])
    except Exception as error:  # noqa: BLE001 - a model may fail in any way
        return Failed(repr(error)[:500])


def set_up_process(parent: int) -> None:
    """Tie this process to its parent's life, make it not dumpable, and lower its priority."""
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        if os.getppid() != parent:  # it died before that was set
            os._exit(1)
    os.nice(_NICENESS)


def main(parent: int) -> None:
    """Run as a program: jobs come on standard input, which is a socket."""
    set_up_process(parent)
    try:
        serve(socket.socket(fileno=0), LocalModel())
    except (BrokenPipeError, ConnectionResetError):
        pass  # nobody is there to answer to
    os._exit(0)  # nothing here is worth tidying up
