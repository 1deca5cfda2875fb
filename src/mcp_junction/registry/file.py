"""FileServers: the servers of the config file, recorded like the others, changed only by the file.

A new file is checked as a whole; then only what differs is touched. A file that cannot be used
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec

from mcp_junction.catalog.endpoints import Endpoint, named_sets
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings, changed_settings
from mcp_junction.errors import ConfigError, Problem, ProblemCode
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.registry.definitions import FILE, file_fields, file_record
from mcp_junction.registry.ground import Ground
from mcp_junction.registry.member import Member
from mcp_junction.store.records import ServerRecord

log = logging.getLogger("mcp_junction.registry")

_AT_ONCE: Final = 4
_SOFT: Final = frozenset({"timeout_ms", "tools", "pin", "id"})
"""What of a definition can change under a link that stays."""


class Reloaded(msgspec.Struct, frozen=True):
    """What a new config file has changed: names of servers, and of settings."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Settings that differ from those this process runs with: they are read at the start only."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


class Plan(msgspec.Struct):
    """What is to be done for a new file."""

    added: list[ServerDefinition] = []
    changed: list[tuple[Member, ServerDefinition]] = []
    removed: list[Member] = []
    sets: list[Endpoint] = []
    needs_restart: tuple[str, ...] = ()

    def summary(self) -> Reloaded:
        return Reloaded(
            tuple(definition.key for definition in self.added),
            tuple(member.name for member, _ in self.changed),
            tuple(member.name for member in self.removed),
            self.needs_restart,
        )


async def recorded(ground: Ground, config: Config, known: list[ServerRecord]) -> list[ServerRecord]:
    """At the start: a record for each server of the file, in its order. Those of servers that are
    in it no more go; a registered server keeps its name."""
    store = ground.store.servers
    by_name = {record.name: record for record in known}
    files = {definition.key: definition for definition in config.servers}
    for record in known:
        if record.origin == FILE and record.name not in files:
            if record.name in config.disabled:
                await store.change(record.id, {"enabled": False})
            else:
                await store.remove(record.id)

    turn = asyncio.Semaphore(_AT_ONCE)

    async def record_for(definition: ServerDefinition) -> ServerRecord | None:
        async with turn:
            return await stored(definition)

    async def stored(definition: ServerDefinition) -> ServerRecord | None:
        found = by_name.get(definition.key)
        if found is None:
            return await store.add(file_record(definition))
        if found.origin != FILE:
            log.error(
                "%s: the server %r is left out: one of that name is registered",
                config.source,
                definition.key,
            )
            return None
        fields = file_fields(definition)
        if any(getattr(found, name) != value for name, value in fields.items()):
            return await store.change(found.id, fields)
        return found

    made = await asyncio.gather(*map(record_for, config.servers))
    return [record for record in made if record is not None]


def planned(ground: Ground, config: Config, running: Settings) -> Plan:
    """What a new file asks for of a process that runs with the settings ``running``.

    Raises ConfigError for one that cannot be used.
    """
    restart = changed_settings(running, config.settings)
    plan = Plan([], [], [], list(named_sets(config).values()), restart)
    problems: list[Problem] = []
    for definition in config.servers:
        member = ground.roster.named(definition.key)
        if member is None:
            plan.added.append(definition)
        elif member.record.origin != FILE:
            words = "a server of that name is registered; remove it, or choose another name"
            path = f"$.mcpServers.{definition.key}"
            problems.append(Problem(ProblemCode.INVALID_SCHEMA, path, words))
        elif member.written != definition:
            plan.changed.append((member, definition))
    keys = {definition.key for definition in config.servers}
    plan.removed = [m for m in ground.roster if m.record.origin == FILE and m.name not in keys]
    if problems:
        raise ConfigError(config.source, problems)
    return plan


def is_soft(old: ServerDefinition | None, new: ServerDefinition) -> bool:
    """Whether a link can stay while its definition changes so."""
    if old is None:
        return False
    names = set(new._fields) - _SOFT
    return all(getattr(old, name) == getattr(new, name) for name in names)


def audited(plan: Plan) -> dict[str, Any]:
    """What the audit is told."""
    done = plan.summary()
    return {
        "actor": LOCAL_OWNER.id,
        "role": LOCAL_OWNER.role.value,
        "action": "config.reload",
        "detail": msgspec.to_builtins(done),
    }
