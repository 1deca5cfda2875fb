"""Jobs: what the worker process is asked, and what it answers, as frames on a socket.

A frame is its length (4 bytes, big-endian) and one msgpack document. A job is answered by one
frame, in the order of the jobs: by what was computed, or by a Failed. Nothing is encrypted and
nothing is checked for age: both ends are one program, on a socket that nobody else has.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill

HEAD: Final = struct.Struct("!I")
LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a frame. What claims to be more is no frame."""


class Embed(msgspec.Struct, tag=True, frozen=True):
    """Make a vector of each text."""

    texts: list[str]


class Classify(msgspec.Struct, tag=True, frozen=True):
    """Say which skills each tool has."""

    subjects: list[Subject]
    skills: list[TaxonomySkill]


class Average(msgspec.Struct, tag=True, frozen=True):
    """Make the mean of vectors."""

    vectors: list[bytes]


class Vectors(msgspec.Struct, tag=True, frozen=True):
    """The answer to Embed and to Average."""

    vectors: list[bytes]


class Verdicts(msgspec.Struct, tag=True, frozen=True):
    """The answer to Classify."""

    verdicts: list[SkillVerdict | None]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The job could not be done; the process is well, and does the next one."""

    reason: str


Job = Embed | Classify | Average
Answer = Vectors | Verdicts | Failed

_encode = msgspec.msgpack.Encoder().encode
_jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def frame(message: Job | Answer) -> bytes:
    """A job or an answer as it is sent."""
    body = _encode(message)
    return HEAD.pack(len(body)) + body


def decode_job(body: bytes) -> Job:
    """The job of a frame. Raises ValueError when it is none."""
    return _jobs.decode(body)


def decode_answer(body: bytes) -> Answer:
    """The answer of a frame. Raises ValueError when it is none."""
    return _answers.decode(body)


def size_of(head: bytes) -> int:
    """How many bytes follow a head. Raises ValueError when it is none."""
    (size,) = HEAD.unpack(head)
    if size > LARGEST:
        raise ValueError(f"a frame of {size} bytes")
    return int(size)
