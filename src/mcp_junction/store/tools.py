"""Tools: what servers offer, and what was decided about each tool.

Prompts, resources and templates (Offers) are stored too, so that a restart can serve at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from mcp_junction.errors import DefinitionChanged, NotFound, UnreadableRow
from mcp_junction.policy.pinning import PinnedState, is_quarantined
from mcp_junction.store.database import Batch, Compute, Database, Load, Query, Row, Script, bump
from mcp_junction.store.records import (
    DECIDED,
    OfferRecord,
    ToolChanges,
    ToolCount,
    ToolDefinitionRow,
    ToolRecord,
)
from mcp_junction.store.skills import held, marked
from mcp_junction.store.table import Table


def _salvage(row: Row) -> ToolRecord:
    """Make a quarantined tool of a damaged row, whose pin is unknown.

    It stays so until a person approves it; left out, it would pass as a new tool.
    """
    tool_id, server_id, name = row[:3]
    if not all(isinstance(text, str) for text in (tool_id, server_id, name)):
        raise UnreadableRow("it does not say which tool it is")
    return ToolRecord(tool_id, server_id, name, 0, b"{}", "", "", quarantined=True)


TOOLS_TABLE = Table(
    "tools",
    ToolRecord,
    json={"fallbacks", "flags", "approved_flags", "skill_ids", "skill_confidences"},
    flags={
        "quarantined",
        "blocked",
        "enabled",
        "read_only",
        "idempotent",
        "is_classified",
    },
    salvage=_salvage,
)
TOOLS_TOPIC = "tools"
_WRITTEN = (
    "position",
    "definition",
    "hash",
    "pinned_definition",
    "quarantined",
    "is_classified",
    "updated_at",
    "gone_at",
)
_SELECT = f"SELECT {TOOLS_TABLE.selected} FROM tools"
LOCKED = "UPDATE servers SET id = id WHERE id = ? RETURNING id"
"""Held first by whoever changes several tools of a server: who waits for whom makes no circle."""


class Tools:
    """All tools of all servers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reading

    async def all(
        self, server_id: str | None = None, *, with_gone: bool = False
    ) -> list[ToolRecord]:
        """In the order their servers list them."""
        where, args = ("WHERE server_id = ?", [server_id]) if server_id else ("WHERE 1 = 1", [])
        gone = "" if with_gone else "AND gone_at IS NULL"
        query = Query(f"{_SELECT} {where} {gone} ORDER BY server_id, position, name", args)
        return await self._database.read(query, TOOLS_TABLE.records)

    async def find(self, server_id: str, name: str) -> ToolRecord | None:
        query = Query(f"{_SELECT} WHERE server_id = ? AND name = ?", (server_id, name))
        return await self._database.read(query, TOOLS_TABLE.first)

    async def some(self, wanted: Collection[tuple[str, str]]) -> list[ToolRecord]:
        """Those of these, each by its server's id and its name, that are listed now."""
        if not wanted:
            return []
        places = ", ".join(["(?, ?)"] * len(wanted))
        where = f"gone_at IS NULL AND (server_id, name) IN (VALUES {places})"
        query = Query(f"{_SELECT} WHERE {where}", [part for one in wanted for part in one])
        return await self._database.read(query, TOOLS_TABLE.records)

    async def by_id(self, tool_id: str) -> ToolRecord | None:
        """A tool that its server lists now."""
        query = Query(f"{_SELECT} WHERE id = ? AND gone_at IS NULL", (tool_id,))
        return await self._database.read(query, TOOLS_TABLE.first)

    async def reviewable(self) -> list[ToolRecord]:
        """Listed tools that are quarantined, flagged, or not in their pinned form."""
        query = Query(
            f"{_SELECT} WHERE gone_at IS NULL"
            " AND (quarantined OR hash <> pinned_hash OR flags <> '[]')"
            " ORDER BY server_id, position, name"
        )
        return await self._database.read(query, TOOLS_TABLE.records)

    async def get(self, server_id: str, name: str) -> ToolRecord:
        """Raises NotFound."""
        found = await self.find(server_id, name)
        if found is None:
            raise NotFound(f"there is no tool {name!r}")
        return found

    async def count(self) -> dict[str, ToolCount]:
        """How many of the tools that servers list now are what, by the server's id."""
        ones = "sum(CASE WHEN {} THEN 1 ELSE 0 END)".format
        parts = ("count(*)", ones("is_classified"), ones("quarantined"), ones("NOT enabled"))
        query = Query(
            f"SELECT server_id, {', '.join(parts)} FROM tools WHERE gone_at IS NULL"
            " GROUP BY server_id"
        )
        return await self._database.read(
            query, lambda rows: {row[0]: ToolCount(*map(int, row[1:])) for row in map(tuple, rows)}
        )

    # -- changing

    async def replace(
        self,
        server_id: str,
        definitions: Sequence[ToolDefinitionRow],
        *,
        strict: bool = False,
        suspects: Collection[str] = (),
    ) -> ToolChanges:
        """The list of a server's tools as it now is; what that changed. Raises NotFound.

        ``suspects`` are the names of those that something was noticed about.
        """
        review = _Review(strict, frozenset(suspects))
        return await self._database.write(_replace(server_id, definitions, review))

    async def change(self, server_id: str, name: str, changes: Mapping[str, Any]) -> ToolRecord:
        """Change what was decided about a tool. Raises NotFound."""
        if not changes or not changes.keys() <= DECIDED:
            raise ValueError(f"not to be changed: {sorted(changes.keys() - DECIDED)}")
        return await self._database.write(_change(server_id, name, changes))

    async def mark(self, server_id: str, marks: Mapping[str, tuple[Sequence[str], bool]]) -> None:
        """What was noticed about tools: name → flags, and whether it is quarantined for that."""
        await self._database.write(_mark(server_id, marks))

    async def approve(self, server_id: str, name: str, digest: str) -> ToolRecord:
        """Pin the definition with this hash, and end its quarantine.

        Raises NotFound, and DefinitionChanged when it has another since it was looked at.
        """
        return await self._database.write(_decide(server_id, name, digest, _APPROVE))

    async def block(self, server_id: str, name: str, digest: str) -> ToolRecord:
        """Keep a tool out until it is approved. Raises as ``approve`` does."""
        return await self._database.write(_decide(server_id, name, digest, _BLOCK))


class _Review(NamedTuple):
    """What the rule of quarantine needs to know about a whole list."""

    strict: bool
    suspects: frozenset[str]

    def quarantines(self, known: ToolRecord | None, definition: ToolDefinitionRow) -> bool:
        state = None
        if known is not None:
            state = PinnedState(
                known.pinned_hash,
                known.hash,
                known.quarantined,
                known.approved_flags is not None,
                known.blocked,
            )
        suspect = definition.name in self.suspects
        return is_quarantined(state, definition.hash, strict=self.strict, suspect=suspect)


def _replace(
    server_id: str, definitions: Sequence[ToolDefinitionRow], review: _Review
) -> Script[ToolChanges]:
    if not (yield Query(LOCKED, (server_id,))):
        raise NotFound(f"there is no server with the id {server_id!r}")
    rows = yield Query(f"{_SELECT} WHERE server_id = ?", (server_id,))
    (made,) = yield Compute(
        lambda: _compare(server_id, TOOLS_TABLE.records(rows), definitions, review)
    )
    changes: ToolChanges
    changes, rewritten = made[0]
    count = len({definition.name for definition in definitions})
    if changes.added:
        yield Load(
            "tools", TOOLS_TABLE.columns, [TOOLS_TABLE.values(tool) for tool in changes.added]
        )
    if rewritten:
        yield held()
        yield marked({skill for tool in _moved(changes) for skill in tool.skill_ids})
        clause = ", ".join(f"{column} = ?" for column in _WRITTEN)
        args = [[*(getattr(tool, c) for c in _WRITTEN), tool.id] for tool in rewritten]
        yield Batch(f"UPDATE tools SET {clause} WHERE id = ?", args)
    if changes or rewritten:
        yield Query("UPDATE servers SET tool_count = ? WHERE id = ?", (count, server_id))
        yield bump(TOOLS_TOPIC)
    return changes


def _compare(
    server_id: str,
    before: list[ToolRecord],
    definitions: Sequence[ToolDefinitionRow],
    review: _Review,
) -> tuple[ToolChanges, list[ToolRecord]]:
    """What is different, and which rows have to be written again for it."""
    now = time.time()
    known = {tool.name: tool for tool in before}
    changes = ToolChanges([], [], [])
    rewritten: list[ToolRecord] = []
    unchanged = 0
    listed: set[str] = set()
    for position, definition in enumerate(definitions):
        if definition.name in listed:  # the first stands
            continue
        listed.add(definition.name)
        old = known.get(definition.name)
        if old is None:
            changes.added.append(_new(server_id, position, definition, review, now))
            continue
        new = _renewed(old, position, definition, review, now)
        if new.hash != old.hash or old.gone_at is not None:
            rewritten.append(new)
            changes.changed.append((old, new))
        else:
            unchanged += 1
            if new != old:
                rewritten.append(new)
    for tool in before:
        if tool.name not in listed and tool.gone_at is None:
            gone = msgspec.structs.replace(tool, gone_at=now)
            changes.removed.append(tool)
            rewritten.append(gone)
    return msgspec.structs.replace(changes, unchanged=unchanged), rewritten


def _moved(changes: ToolChanges) -> list[ToolRecord]:
    """The tools that have left the list, or are back on it."""
    return [*changes.removed, *(old for old, _ in changes.changed if old.gone_at is not None)]


def _new(
    server_id: str, position: int, definition: ToolDefinitionRow, review: _Review, now: float
) -> ToolRecord:
    return ToolRecord(
        id=str(uuid4()),
        server_id=server_id,
        name=definition.name,
        position=position,
        definition=definition.definition,
        hash=definition.hash,
        pinned_hash=definition.hash,
        quarantined=review.quarantines(None, definition),
        first_seen_at=now,
        updated_at=now,
    )


def _renewed(
    old: ToolRecord, position: int, definition: ToolDefinitionRow, review: _Review, now: float
) -> ToolRecord:
    """A known tool as its server tells of it now. Only approval moves the pin."""
    differs = definition.hash != old.pinned_hash
    pinned = old.pinned_definition
    if differs and pinned is None:
        pinned = old.definition
    changed = definition.hash != old.hash
    return msgspec.structs.replace(
        old,
        position=position,
        definition=definition.definition,
        hash=definition.hash,
        pinned_definition=pinned if differs else None,
        quarantined=review.quarantines(old, definition),
        is_classified=old.is_classified and not changed,
        updated_at=now if changed or old.gone_at is not None else old.updated_at,
        gone_at=None,
    )


def _change(server_id: str, name: str, changes: Mapping[str, Any]) -> Script[ToolRecord]:
    clause, args = TOOLS_TABLE.assignments({**changes, "updated_at": time.time()})
    rows = yield Query(
        f"UPDATE tools SET {clause} WHERE server_id = ? AND name = ?"
        f" RETURNING {', '.join(TOOLS_TABLE.columns)}",
        (*args, server_id, name),
    )
    if not rows:
        raise NotFound(f"there is no tool {name!r}")
    yield bump(TOOLS_TOPIC)
    return TOOLS_TABLE.record(rows[0])


def _mark(server_id: str, marks: Mapping[str, tuple[Sequence[str], bool]]) -> Script[None]:
    rows = [
        (TOOLS_TABLE.value("flags", list(flags)), quarantined, server_id, name)
        for name, (flags, quarantined) in sorted(marks.items())
    ]
    yield Query(LOCKED, (server_id,))
    yield Batch(
        "UPDATE tools SET flags = ?, quarantined = ? WHERE server_id = ? AND name = ?", rows
    )
    yield bump(TOOLS_TOPIC)


_APPROVE: Final = (
    "pinned_hash = hash, pinned_definition = NULL, quarantined = FALSE, blocked = FALSE,"
    " approved_flags = flags"
)
_BLOCK: Final = "quarantined = TRUE, blocked = TRUE"


def _decide(server_id: str, name: str, digest: str, assignments: str) -> Script[ToolRecord]:
    """Store a person's decision about the definition with this hash."""
    rows = yield Query(
        f"UPDATE tools SET {assignments}, updated_at = ? WHERE server_id = ? AND name = ?"
        f" AND hash = ? AND gone_at IS NULL RETURNING {', '.join(TOOLS_TABLE.columns)}",
        (time.time(), server_id, name, digest),
    )
    if rows:
        yield bump(TOOLS_TOPIC)
        return TOOLS_TABLE.record(rows[0])
    found = yield Query(
        "SELECT hash FROM tools WHERE server_id = ? AND name = ? AND gone_at IS NULL",
        (server_id, name),
    )
    if found:
        raise DefinitionChanged(found[0][0])
    raise NotFound(f"there is no tool {name!r}")


OFFERS_TABLE = Table("offers", OfferRecord)
OFFERS_TOPIC = "offers"
_SAME = "server_id = ? AND kind = ?"


class Offers:
    """What servers offer besides tools."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, server_id: str | None = None) -> list[OfferRecord]:
        """In the order their servers list them."""
        where, args = ("WHERE server_id = ?", [server_id]) if server_id else ("", [])
        query = Query(
            f"SELECT {OFFERS_TABLE.selected} FROM offers {where}"
            " ORDER BY server_id, kind, position",
            args,
        )
        return await self._database.read(query, OFFERS_TABLE.records)

    async def replace(
        self, server_id: str, kind: str, definitions: Sequence[ToolDefinitionRow]
    ) -> bool:
        """All of one kind as they now are; whether anything changed. Raises NotFound."""
        return await self._database.write(_replace_offers(server_id, kind, definitions))


def _replace_offers(
    server_id: str, kind: str, definitions: Sequence[ToolDefinitionRow]
) -> Script[bool]:
    locked = yield Query("UPDATE servers SET id = id WHERE id = ? RETURNING id", (server_id,))
    if not locked:
        raise NotFound(f"there is no server with the id {server_id!r}")
    rows = yield Query(
        f"SELECT name, position, definition FROM offers WHERE {_SAME}", (server_id, kind)
    )
    before = {row[0]: (row[1], bytes(row[2])) for row in rows}
    after: dict[str, tuple[int, bytes]] = {}
    for position, definition in enumerate(definitions):
        after.setdefault(definition.name, (position, definition.definition))
    if before == after:
        return False
    stale = [name for name, value in before.items() if after.get(name) != value]
    fresh = [(name, *value) for name, value in after.items() if before.get(name) != value]
    yield Batch(
        f"DELETE FROM offers WHERE {_SAME} AND name = ?", [(server_id, kind, n) for n in stale]
    )
    yield Load("offers", OFFERS_TABLE.columns, [(server_id, kind, *values) for values in fresh])
    yield bump(OFFERS_TOPIC)
    return True
