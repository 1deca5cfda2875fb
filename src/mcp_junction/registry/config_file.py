"""FileServers: applies the config file to the registry; AbsentServers: those it no longer names.

A new file is checked as a whole; then only the servers that differ are changed. A file that cannot
be used changes nothing.

An absent server is one of an earlier file that the current one does not name. Its rows stay in
the store as they were, with pins, decisions and classification, so that none of its tools passes
as new when the file names it again. Whether a server is absent is not stored: it depends on the
file that this process was given, and must change nothing for another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from mcp_junction.app import Junction
from mcp_junction.catalog.endpoints import Endpoint, named_sets
from mcp_junction.config.door import DoorConfig
from mcp_junction.config.load import Config
from mcp_junction.config.servers import OPTIONS, ServerDefinition
from mcp_junction.config.settings import Settings, changed_settings
from mcp_junction.errors import (
    AlreadyExists,
    ConfigError,
    FileOwned,
    NotFound,
    Problem,
    invalid_at,
)
from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.definitions import (
    FILE,
    RECONNECT_FIELDS,
    check_version,
    file_fields,
    file_record,
)
from mcp_junction.registry.member import Member
from mcp_junction.store.records import ServerRecord
from mcp_junction.store.store import Store
from mcp_junction.upstream.state import ServerState

log = logging.getLogger("mcp_junction.registry")

_AT_ONCE: Final = 4
DRAIN: Final = 30.0
"""Seconds that calls under way have to end when their server is disconnected."""
_LINK_KEEPING: Final = frozenset(
    {"id", "tools"} | {name for name, option in OPTIONS.items() if not option.reconnects}
)
"""Fields of a definition that can change without a new connection."""


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
    """The changes to make for a new file."""

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


async def store_file_records(
    context: RegistryContext, config: Config, known: list[ServerRecord]
) -> list[ServerRecord]:
    """Store, at the start, a record for each server of the file; returns them in its order.

    The rows of absent servers are left as they are; a registered server keeps its name.
    """
    by_name = {record.name: record for record in known}
    files = {definition.key for definition in config.servers}
    absent = [record.name for record in known if record.origin == FILE and record.name not in files]
    if absent:
        words = (
            "%d servers of an earlier config file are kept, but not served: %.500s;"
            " see: mcp-junction servers list --all"
        )
        log.info(words, len(absent), ", ".join(absent))
    turn = asyncio.Semaphore(_AT_ONCE)

    async def record_for(definition: ServerDefinition) -> ServerRecord | None:
        found = by_name.get(definition.key)
        if found is not None and found.origin != FILE:
            log.error(
                "%s: the server %r is left out: one of that name is registered",
                config.source,
                definition.key,
            )
            return None
        async with turn:
            return await store_record(context.store, definition, found)

    made = await asyncio.gather(*map(record_for, config.servers))
    return [record for record in made if record is not None]


async def store_record(
    store: Store, definition: ServerDefinition, found: ServerRecord | None
) -> ServerRecord:
    """Store what the file says of a server, in the row that it had before if there is one."""
    if found is None:
        return await store.servers.add(file_record(definition))
    fields = file_fields(definition)
    if any(getattr(found, name) != value for name, value in fields.items()):
        return await store.servers.change(found.id, fields)
    return found


class FileServers:
    """Applies a new config file: finds what differs, and has the registry change it."""

    def __init__(
        self,
        context: RegistryContext,
        junction: Junction,
        add_member: Callable[..., Member],
        apply: Callable[[Member, ServerRecord, frozenset[str]], Awaitable[None]],
    ) -> None:
        self._context = context
        self._junction = junction
        self._add_member = add_member
        self._apply_change = apply

    async def reload(self, config: Config) -> Reloaded:
        """Apply a new config file. Raises ConfigError: then nothing has changed."""
        context, junction = self._context, self._junction
        plan = plan_reload(context, config, junction.settings, junction.config.door)
        done = plan.summary()
        detail, me = msgspec.to_builtins(done), LOCAL_OWNER
        async with context.audit.act(me.id, me.role.value, "config.reload", detail=detail):
            for member in plan.removed:
                junction.servers.remove(member.name, DRAIN)
                context.publish("server.removed", member.record, absent=True)
            for member, definition in plan.changed:
                record = await self._change(member, definition)
                context.publish("server.changed", record, changed=["file"])
            for definition in plan.added:
                record = await self._add(definition)
                kind = record.transport_type
                context.publish("server.registered", record, transport_type=kind)
        junction.config = config
        junction.live_catalog.reorder([definition.key for definition in config.servers])
        junction.live_catalog.narrow(plan.sets)
        context.bus.publish("config.reloaded", detail)
        return done

    async def _change(self, member: Member, definition: ServerDefinition) -> ServerRecord:
        async with member.lock:
            fields = file_fields(definition)
            record = await self._context.store.servers.change(member.id, fields)
            keeps_link = can_keep_link(member.file_definition, definition)
            member.file_definition = definition
            await self._apply_change(
                member, record, frozenset({"pin"}) if keeps_link else RECONNECT_FIELDS
            )
        return record

    async def _add(self, definition: ServerDefinition) -> ServerRecord:
        """Add a server that is new in the file, with what the store knows of it.

        Raises AlreadyExists.
        """
        store = self._context.store
        found = await store.servers.named(definition.key)
        if found is not None and found.origin != FILE:
            raise AlreadyExists(f"there is a server {found.name!r} already")
        record = await store_record(store, definition, found)
        tools = await store.tools.all(record.id, with_gone=True)
        self._add_member(record, definition, tools, await store.offers.all(record.id))
        return record


def plan_reload(
    context: RegistryContext, config: Config, running: Settings, door: DoorConfig | None = None
) -> Plan:
    """Find what a new file changes in a process that runs with these settings and this door.

    Raises ConfigError for one that cannot be used.
    """
    restart = changed_settings(running, config.settings)
    restart += ("door",) if config.door != door else ()
    plan = Plan([], [], [], list(named_sets(config).values()), restart)
    problems: list[Problem] = []
    for definition in config.servers:
        member = context.members.named(definition.key)
        if member is None:
            plan.added.append(definition)
        elif member.record.origin != FILE:
            words = "a server of that name is registered; remove it, or choose another name"
            path = f"$.mcpServers.{definition.key}"
            problems.append(invalid_at(path, words))
        elif member.file_definition != definition:
            plan.changed.append((member, definition))
    keys = {definition.key for definition in config.servers}
    plan.removed = [m for m in context.members if m.record.origin == FILE and m.name not in keys]
    if problems:
        raise ConfigError(config.source, problems)
    return plan


def can_keep_link(old: ServerDefinition | None, new: ServerDefinition) -> bool:
    """Whether a server can keep its link when its definition changes so."""
    if old is None:
        return False
    names = set(new._fields) - _LINK_KEEPING
    return all(getattr(old, name) == getattr(new, name) for name in names)


class AbsentServers:
    """Lists and removes servers that are in the store, but not in the current config file."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self.lock = asyncio.Lock()
        """Held while servers become absent, come back or are removed."""

    async def all(self) -> list[ServerRecord]:
        """Return all absent servers, by name."""
        found = await self._context.store.servers.all()
        return [_without_status(record) for record in found if self._is_absent(record)]

    async def get(self, ref: str) -> ServerRecord:
        """Return one by id or name. Raises NotFound."""
        found = await self._context.store.servers.find(ref)
        if found is None or not self._is_absent(found):
            raise NotFound(f"there is no server {ref!r}")
        return _without_status(found)

    async def remove(self, ref: str, actor: Principal, if_match: int | None = None) -> None:
        """Remove one for good, pins and all. Raises NotFound, FileOwned, VersionConflict."""
        async with self.lock:
            if (member := self._context.members.find(ref)) is not None:
                raise FileOwned(member.name)  # it has come back while we waited
            record = await self.get(ref)
            check_version(record, if_match)
            detail = {"absent": True}
            async with self._context.audit_act(actor, "server.remove", record, detail=detail):
                await self._context.store.servers.remove(record.id)
                self._context.forget_server(record.id)
        self._context.publish("server.removed", record)

    async def explain_taken_name(self, name: str) -> AlreadyExists:
        """Make the error for a name that is taken: it says by which kind of server."""
        try:
            await self.get(name)
        except NotFound:
            return AlreadyExists(f"there is a server {name!r} already")
        return AlreadyExists(
            f"the name {name!r} belongs to a server that is not in the current config file; its"
            " pins are kept. Choose another name, or remove it first:"
            f" mcp-junction servers remove {name}"
        )

    def _is_absent(self, record: ServerRecord) -> bool:
        return record.origin == FILE and self._context.members.find(record.id) is None


def _without_status(record: ServerRecord) -> ServerRecord:
    """Return a record as disconnected, without the status of its last connection."""
    return msgspec.structs.replace(
        record,
        status=ServerState.DISCONNECTED.value,
        reachable=None,
        authenticated=None,
        healthy=None,
        response_time_ms=None,
        error_rate=None,
        error_message=None,
        connected_at=None,
    )
