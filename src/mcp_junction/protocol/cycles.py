"""Cycles: the ``_meta`` by which chained Junctions find out that they form a cycle.

Each process has a random id and sends it in its greeting. A Junction that reads the lists of
another sends its own id in the request, and the list then names the ids of all Junctions behind it.
One that finds its own id there is part of a cycle. Other clients and servers see only the id in the
greeting's ``_meta``, where unknown members are allowed. Nothing here decides what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.protocol import encode, frames

ID_KEY: Final = "junction/id"
REACHABLE_KEY: Final = "junction/reaches"
_ID_BYTES: Final = ID_KEY.encode()
_MOST: Final = 1_000
"""At most so many ids are read from one server."""
_ids = msgspec.json.Decoder(list[str])


def junction_id_in(meta: Raw | bytes | None) -> str:
    """Return the id of the Junction that a ``_meta`` is from; empty when it is from none."""
    return frames.text(frames.object_members(meta).get(ID_KEY)) or ""


def is_from_junction(meta: Raw | None) -> bool:
    """Return whether a request comes from a Junction that reads our lists."""
    return meta is not None and _ID_BYTES in frames.octets(meta) and bool(junction_id_in(meta))


def reachable_in(meta: Raw | bytes | None) -> frozenset[str]:
    """Return the ids of all Junctions that a list names: its own and those behind it."""
    raw = frames.object_members(meta).get(REACHABLE_KEY)
    if raw is None:
        return frozenset()
    try:
        return frozenset(_ids.decode(raw)[:_MOST])
    except msgspec.DecodeError:
        return frozenset()


def id_meta(junction_id: str) -> dict[str, Raw]:
    """Return a ``_meta`` with the id of a Junction."""
    return {ID_KEY: Raw(encode.dumps(junction_id))}


def reachable_member(junction_ids: Iterable[str]) -> bytes:
    """Return the member of a list's ``_meta`` that names the Junctions behind it."""
    return b'"%b":%b' % (REACHABLE_KEY.encode(), encode.dumps(sorted(junction_ids)))
