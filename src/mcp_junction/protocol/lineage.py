"""Lineage: how Junctions that stand behind one another find out that they form a cycle.

Each process has a random id and says it in its greeting. Who reads the lists of such a server says
in ``_meta`` that it is a Junction, too, and is told with the list which Junctions it leads to. One
that finds its own id there is part of a cycle. Other clients and servers see none of this but the
id in the greeting's ``_meta``, where everybody may put what others do not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames

INSTANCE_KEY: Final = "junction/id"
REACHES_KEY: Final = "junction/reaches"
_MARK: Final = INSTANCE_KEY.encode()
_MOST: Final = 1_000
"""Ids that are believed of one server: a chain of so many Junctions is no chain."""
_ids = msgspec.json.Decoder(list[str])


def instance_in(meta: Raw | bytes | None) -> str:
    """Return the id of the Junction that a ``_meta`` is from; empty when it is from none."""
    return frames.text(_members(meta).get(INSTANCE_KEY)) or ""


def is_from_junction(meta: Raw | None) -> bool:
    """Return whether a request comes from a Junction that reads our lists."""
    return meta is not None and _MARK in frames.octets(meta) and bool(instance_in(meta))


def reaches_in(meta: Raw | bytes | None) -> frozenset[str]:
    """Return the ids of all Junctions that a list leads to, itself included."""
    raw = _members(meta).get(REACHES_KEY)
    if raw is None:
        return frozenset()
    try:
        return frozenset(_ids.decode(raw)[:_MOST])
    except msgspec.DecodeError:
        return frozenset()


def mark(instance: str) -> dict[str, Raw]:
    """Return the ``_meta`` of a request for a list."""
    return {INSTANCE_KEY: Raw(encode.dumps(instance))}


def tail(reaches: Iterable[str]) -> bytes:
    """Return the member of a ``_meta`` that says where a list leads."""
    return b'"%b":%b' % (REACHES_KEY.encode(), encode.dumps(sorted(reaches)))


def _members(meta: Raw | bytes | None) -> dict[str, Raw]:
    try:
        return frames.members(meta) if meta else {}
    except FrameError:
        return {}
