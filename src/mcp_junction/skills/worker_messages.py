"""Messages between the service and the worker process: jobs and their answers, as frames.

A frame is its length (4 bytes, big-endian) and one msgpack document. Each job is answered by one
frame, in order: by the result, or by Failed. Both ends are one program on a private socket, so
nothing is encrypted or versioned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from mcp_junction.search.vectors import Ranked, RankingJob
from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill
from mcp_junction.skills.features import ToolText

HEAD: Final = struct.Struct("!I")
LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a frame, at most."""


class Embed(msgspec.Struct, tag=True, frozen=True):
    """Compute a vector for each text, by the static table, or by MiniLM of the file named."""

    texts: list[str]
    file: str = ""


class Classify(msgspec.Struct, tag=True, frozen=True):
    """Find the skills of each tool."""

    subjects: list[Subject]
    skills: list[TaxonomySkill]
    pooled: bytes = b""


class PoolServer(msgspec.Struct, tag=True, frozen=True):
    """Compute what a server adds to the verdicts on its tools."""

    server: ToolText
    tools: list[ToolText]


class Cluster(msgspec.Struct, tag=True, frozen=True):
    """Find groups of tools that are alike."""

    vectors: list[bytes]
    servers: list[str]


class Groups(msgspec.Struct, tag=True, frozen=True):
    """The answer to Cluster."""

    groups: list[list[int]]


class Average(msgspec.Struct, tag=True, frozen=True):
    """Compute the mean of vectors."""

    vectors: list[bytes]


class Vectors(msgspec.Struct, tag=True, frozen=True):
    """The answer to Embed, to Average and to PoolServer."""

    vectors: list[bytes]


class Verdicts(msgspec.Struct, tag=True, frozen=True):
    """The answer to Classify."""

    verdicts: list[SkillVerdict | None]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The job failed; the process goes on with the next one."""

    reason: str


Job = Embed | Classify | PoolServer | Cluster | Average | RankingJob
Answer = Vectors | Verdicts | Groups | Ranked | Failed

_encode = msgspec.msgpack.Encoder().encode
decode_job: Callable[[bytes], Job] = msgspec.msgpack.Decoder(Job).decode
decode_answer: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode
"""Both raise ValueError for a malformed body."""


def encode_frame(message: Job | Answer) -> bytes:
    """Encode a job or an answer."""
    body = _encode(message)
    return HEAD.pack(len(body)) + body


def frame_size(head: bytes) -> int:
    """Return how many bytes follow the head of a frame. Raises ValueError."""
    (size,) = HEAD.unpack(head)
    if size > LARGEST:
        raise ValueError(f"a frame of {size} bytes")
    return int(size)
