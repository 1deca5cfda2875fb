"""Tools: the tables of servers' tools, with the decisions about them, and of their other offers.

Prompts, resources and templates (Offers) are stored too, so that a restart can serve at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from mcp_junction.errors import DefinitionChanged, NotFound, UnreadableRow
from mcp_junction.policy.pinning import PinnedState, is_quarantined
from mcp_junction.policy.risk import defines_destructive
from mcp_junction.store.database import Batch, Compute, Load, Query, Row, Script, bump, placeholders
from mcp_junction.store.records import (
    OfferRecord,
    ToolChanges,
    ToolCount,
    ToolDefinitionRow,
    ToolRecord,
)
from mcp_junction.store.table import StoreTable, Table, transaction


def _salvage(row: Row) -> ToolRecord:
    """Make a quarantined tool of a damaged row: left out, it would pass as a new tool.

    Its pin is unknown, so it stays quarantined until a person approves it.
    """
    tool_id, server_id, name = row[:3]
    if not all(isinstance(text, str) for text in (tool_id, server_id, name)):
        raise UnreadableRow("it does not say which tool it is")
    return ToolRecord(tool_id, server_id, name, 0, b"{}", "", "", quarantined=True)


TOOLS_TABLE = Table(
    "tools",
    ToolRecord,
    json={"flags", "approved_flags", "skill_ids", "skill_confidences", "own_skill_confidences"},
    flags={"quarantined", "blocked", "is_classified", "was_destructive"},
    salvage=_salvage,
)
TOOLS_TOPIC: Final = "tools"
DECISIONS_TOPIC: Final = "tool_decisions"
"""What people decided about tools; they are in TOOLS_TOPIC as well."""
SKILLS_TOPIC: Final = "skills"
_WRITTEN = (
    "position", "definition", "hash", "pinned_definition", "quarantined", "is_classified",
    "updated_at", "gone_at", "was_destructive",
)  # fmt: skip
SET_SKILLS: Final = (
    "UPDATE tools SET skill_ids = ?, skill_confidences = ?, primary_skill_id = ?,"
    " is_classified = ? WHERE id = ?"
)


def lock_server(server_id: str) -> Query:
    """Lock a server's row; no rows when there is no such server.

    Everyone who changes several tools of a server does so first: one order for all.
    """
    return Query("UPDATE servers SET id = id WHERE id = ? RETURNING id", (server_id,))


def lock_known_server(server_id: str) -> Script[None]:
    """Lock a server's row. Raises NotFound."""
    if not (yield lock_server(server_id)):
        raise NotFound(f"there is no server with the id {server_id!r}")


def lock_skills() -> Query:
    """Keep everybody else from marking skills until the transaction ends."""
    return bump(SKILLS_TOPIC)


def mark_skills(ids: Iterable[str]) -> Query:
    """Have the vectors of these skills computed again."""
    given = sorted(set(ids))
    sql = f"UPDATE skills SET marked = marked + 1 WHERE id IN ({placeholders(given)})"
    return Query(sql, given)


class Tools(StoreTable):
    """All tools of all servers."""

    # -- reading

    async def all(
        self, server_id: str | None = None, *, with_gone: bool = False
    ) -> list[ToolRecord]:
        """Read the tools of one server, or of all, in the order their servers list them."""
        where, args = ("server_id = ?", [server_id]) if server_id else ("1 = 1", [])
        gone = "" if with_gone else "AND gone_at IS NULL"
        order = "ORDER BY server_id, position, name"
        return await self._read(TOOLS_TABLE, f"WHERE {where} {gone} {order}", *args)

    async def some(self, wanted: Collection[tuple[str, str]]) -> list[ToolRecord]:
        """Read the listed tools among these, each given as (server's id, tool's name)."""
        if not wanted:
            return []
        names: dict[str, list[str]] = {}
        for server_id, name in wanted:
            names.setdefault(server_id, []).append(name)
        # By server: SQLite would go through the whole table for pairs, (a, b) IN (…).
        having = "(server_id = ? AND name IN ({}))".format
        any_of = " OR ".join(having(placeholders(some)) for some in names.values())
        args = (arg for server_id, some in names.items() for arg in (server_id, *some))
        return await self._read(TOOLS_TABLE, f"WHERE gone_at IS NULL AND ({any_of})", *args)

    async def reviewable(self) -> list[ToolRecord]:
        """Read the listed tools that are quarantined, flagged, or not in their pinned form."""
        return await self._read(
            TOOLS_TABLE,
            "WHERE gone_at IS NULL AND (quarantined OR hash <> pinned_hash OR flags <> '[]')"
            " ORDER BY server_id, position, name",
        )

    async def decided(self) -> list[ToolRecord]:
        """Read the listed tools that a person has approved or blocked."""
        where = "WHERE gone_at IS NULL AND (blocked OR approved_flags IS NOT NULL)"
        return await self._read(TOOLS_TABLE, where)

    async def by_id(self, tool_id: str) -> ToolRecord | None:
        """Read a listed tool by its id."""
        return await self._read_first(TOOLS_TABLE, "WHERE id = ? AND gone_at IS NULL", tool_id)

    async def find(self, server_id: str, name: str) -> ToolRecord | None:
        """Read a tool by its server and name, if there is one."""
        where = "WHERE server_id = ? AND name = ?"
        return await self._read_first(TOOLS_TABLE, where, server_id, name)

    async def get(self, server_id: str, name: str) -> ToolRecord:
        """Read a tool by its server and name. Raises NotFound."""
        found = await self.find(server_id, name)
        if found is None:
            raise NotFound(f"there is no tool {name!r}")
        return found

    async def count(self) -> dict[str, ToolCount]:
        """Count the listed tools of each server, by the server's id."""
        ones = "sum(CASE WHEN {} THEN 1 ELSE 0 END)".format
        parts = ("count(*)", ones("is_classified"), ones("quarantined"))
        found = await self._read_rows(
            lambda row: (row[0], ToolCount(*map(int, tuple(row)[1:]))),
            f"SELECT server_id, {', '.join(parts)} FROM tools WHERE gone_at IS NULL"
            " GROUP BY server_id",
        )
        return dict(found)

    # -- changing

    @transaction()
    def replace(
        self,
        server_id: str,
        definitions: Sequence[ToolDefinitionRow],
        *,
        strict: bool = False,
        suspects: Collection[str] = (),
    ) -> Script[ToolChanges]:
        """Store a server's new list of tools, and return what changed. Raises NotFound.

        ``suspects`` are the names of tools with suspicious definitions.
        """
        yield from lock_known_server(server_id)
        rows = yield TOOLS_TABLE.select("WHERE server_id = ?", (server_id,))
        review = _Review(strict, frozenset(suspects))
        (made,) = yield Compute(
            lambda: _compare(server_id, TOOLS_TABLE.records(rows), definitions, review)
        )
        changes: ToolChanges
        changes, rewritten = made[0]
        if changes.added:
            added = [TOOLS_TABLE.values(tool) for tool in changes.added]
            yield Load("tools", TOOLS_TABLE.columns, added)
        if rewritten:
            yield lock_skills()
            yield mark_skills(skill for tool in _moved(changes) for skill in tool.skill_ids)
            clause = ", ".join(f"{column} = ?" for column in _WRITTEN)
            args = [[*(getattr(tool, c) for c in _WRITTEN), tool.id] for tool in rewritten]
            yield Batch(f"UPDATE tools SET {clause} WHERE id = ?", args)
        if changes or rewritten:
            count = len({definition.name for definition in definitions})
            yield Query("UPDATE servers SET tool_count = ? WHERE id = ?", (count, server_id))
            yield bump(TOOLS_TOPIC)
        return changes

    @transaction()
    def mark(self, server_id: str, marks: Mapping[str, tuple[Sequence[str], bool]]) -> Script[None]:
        """Store what an inspection found: name → flags, and whether the tool is quarantined."""
        rows = [
            (TOOLS_TABLE.value("flags", list(flags)), quarantined, server_id, name)
            for name, (flags, quarantined) in sorted(marks.items())
        ]
        yield lock_server(server_id)
        yield Batch(
            "UPDATE tools SET flags = ?, quarantined = ? WHERE server_id = ? AND name = ?", rows
        )
        yield bump(TOOLS_TOPIC)

    @transaction()
    def approve(self, server_id: str, name: str, digest: str) -> Script[ToolRecord]:
        """Pin the definition with this hash, and end its quarantine.

        Raises NotFound, and DefinitionChanged when the tool has another definition by now.
        """
        return (yield from _decide(server_id, name, digest, _APPROVE))

    @transaction()
    def block(self, server_id: str, name: str, digest: str) -> Script[ToolRecord]:
        """Quarantine a tool until it is approved. Raises as ``approve`` does."""
        return (yield from _decide(server_id, name, digest, _BLOCK))


class _Review(NamedTuple):
    """Decides which tools of a new list are quarantined."""

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


def _compare(
    server_id: str,
    before: list[ToolRecord],
    definitions: Sequence[ToolDefinitionRow],
    review: _Review,
) -> tuple[ToolChanges, list[ToolRecord]]:
    """Compare a new list with the stored one; return the changes, and the rows to write again."""
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
        new = _update_definition(old, position, definition, review, now)
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
    """Return the tools that have left the list, or are back on it."""
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
        was_destructive=definition.is_destructive,
    )


def was_destructive(tool: ToolRecord) -> bool:
    """Tell whether a tool says that it destroys, or did since it was last approved."""
    forms = (tool.definition, tool.pinned_definition)  # older rows have no mark
    return tool.was_destructive or any(map(defines_destructive, forms))


def _update_definition(
    old: ToolRecord, position: int, definition: ToolDefinitionRow, review: _Review, now: float
) -> ToolRecord:
    """Give a known tool its definition of now. Only approval moves the pin."""
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
        was_destructive=definition.is_destructive
        or (was_destructive(old) if changed else old.was_destructive),
    )


_RETURNING: Final = f" RETURNING {', '.join(TOOLS_TABLE.columns)}"
_APPROVE: Final = (
    "pinned_hash = hash, pinned_definition = NULL, quarantined = FALSE, blocked = FALSE,"
    " approved_flags = flags, was_destructive = FALSE"
)
_BLOCK: Final = "quarantined = TRUE, blocked = TRUE"


def _decide(server_id: str, name: str, digest: str, assignments: str) -> Script[ToolRecord]:
    """Store a person's decision about the definition with this hash."""
    rows = yield Query(
        f"UPDATE tools SET {assignments}, updated_at = ? WHERE server_id = ? AND name = ?"
        f" AND hash = ? AND gone_at IS NULL{_RETURNING}",
        (time.time(), server_id, name, digest),
    )
    if rows:
        yield bump(TOOLS_TOPIC)
        yield bump(DECISIONS_TOPIC)
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


class Offers(StoreTable):
    """What servers offer besides tools."""

    async def all(self, server_id: str | None = None) -> list[OfferRecord]:
        """Read the offers of one server, or of all, in the order their servers list them."""
        where, args = ("WHERE server_id = ?", [server_id]) if server_id else ("", [])
        rest = f"{where} ORDER BY server_id, kind, position"
        return await self._read(OFFERS_TABLE, rest, *args)

    @transaction()
    def replace(
        self, server_id: str, kind: str, definitions: Sequence[ToolDefinitionRow]
    ) -> Script[bool]:
        """Store a server's new list of one kind; return whether it changed. Raises NotFound."""
        yield from lock_known_server(server_id)
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
        sql = f"DELETE FROM offers WHERE {_SAME} AND name = ?"
        yield Batch(sql, [(server_id, kind, name) for name in stale])
        added = [(server_id, kind, *values) for values in fresh]
        yield Load("offers", OFFERS_TABLE.columns, added)
        yield bump(OFFERS_TOPIC)
        return True
