"""Registry: lists and changes the servers at run time, whether registered or of the config file.

Every change is one act in the audit, one event on the bus and, where it concerns the connection,
one row of history. A change of one server waits for the one before it; servers do not wait for each
other. ``find``, ``all`` and ``state`` read from memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self

import msgspec

from mcp_junction.app import Junction
from mcp_junction.catalog.items import ServerLists
from mcp_junction.config.load import Config
from mcp_junction.config.registration import UNCONNECTED, Registration
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import AlreadyExists, FileOwned, NotFound
from mcp_junction.policy.pinning import STRICT
from mcp_junction.policy.principal import Principal
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.registry.config_file import (
    DRAIN,
    AbsentServers,
    FileServers,
    Reloaded,
    store_file_records,
)
from mcp_junction.registry.definitions import (
    FILE,
    RECONNECT_FIELDS,
    check_allowed,
    check_registration,
    check_version,
    definition_for,
    fields_of,
    read_changed,
    record_of,
)
from mcp_junction.registry.inspection import drop_hidden_tools
from mcp_junction.registry.known_tools import group_by_kind, read_stored_lists
from mcp_junction.registry.member import Member
from mcp_junction.registry.metrics import State, metrics_of, state_of
from mcp_junction.registry.parts import RegistryParts as RegistryParts  # others look for it here
from mcp_junction.store.records import (
    HistoryRecord,
    OfferRecord,
    ServerRecord,
    ToolChanges,
    ToolRecord,
)
from mcp_junction.upstream.state import ServerState

_LAST_MINUTE: Final = 2.0
"""Seconds that storing the counts of the last minute may take."""
_AT_ONCE: Final = 4
"""How many registrations are stored at one time: others need the store, too."""


class Registry:
    """All servers. Use as ``async with Registry(junction, parts) as registry``.

    Junction is made with ``starts=False``: its servers are the registry's to start.
    """

    def __init__(self, junction: Junction, parts: RegistryParts) -> None:
        self.context = self._context = context = parts.context
        self._lifecycle = parts.lifecycle
        self.skills, self.tools = parts.skills, parts.tools
        self.skills.classifier.show_skills = junction.live_catalog.show_skills
        self.audit = context.audit
        self._call_metrics = parts.call_metrics
        self.metrics_history = parts.metrics_history
        self._junction = junction
        self._servers = junction.servers
        self._members = context.members
        self.absent = AbsentServers(context)
        self._file = FileServers(context, junction, self._add_member, self._apply)
        self._started_at = time.time()
        self._registrations = asyncio.Semaphore(_AT_ONCE)

    # -- life

    async def __aenter__(self) -> Self:
        self._context.is_open = True
        self._lifecycle.begin()
        run = self.metrics_history.run
        self._context.tasks.supervise("call metrics", run, is_vital=False)
        self._junction.greet()
        await self._load()
        return self

    async def wait_until_stored(self) -> None:
        """Wait until the current lists of all servers are in the store."""
        for member in self._members:
            await self.tools.wait_until_stored(member)

    async def __aexit__(self, *_: object) -> None:
        self._context.is_open = False
        await self._lifecycle.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_MINUTE):
                await self.metrics_history.store_last()
        await self._context.tasks.close()

    async def _load(self) -> None:
        """Add the servers of the store and of the config file."""
        store, config = self._context.store, self._junction.config
        known = await store.servers.all()
        of_file = await store_file_records(self._context, config, known)
        await self.skills.load()
        await self.tools.settings.begin()
        tools, offers = await read_stored_lists(store)
        in_file = {definition.key: definition for definition in config.servers}
        registered = [record for record in known if record.origin != FILE]
        registered.sort(key=lambda record: record.registered_at)
        for record in [*of_file, *registered]:
            await asyncio.sleep(0)  # thousands of tools take a while
            definition = in_file.get(record.name) if record.origin == FILE else None
            self._add_member(record, definition, tools[record.id], offers[record.id])
        if self._context.tool_rules.strict_schemas:
            self.tools.inspection.schedule()  # it may not have been set when tools were stored
        await asyncio.to_thread(KNOWN.process_pending)  # later it would hold up a call

    def _add_member(
        self,
        record: ServerRecord,
        file_definition: ServerDefinition | None = None,
        tools: list[ToolRecord] | None = None,
        offers: list[OfferRecord] | None = None,
    ) -> Member:
        """Add a server, and connect to it unless it is disabled or was disconnected."""
        # The stored status is DISCONNECTED only if an operator disconnected it.
        wanted = record.enabled and record.status != ServerState.DISCONNECTED.value
        definition = self._definition(record, file_definition)
        decisions = self.tools.restore_decisions(record.id, tools or ())
        lists = group_by_kind(tools or (), offers or ()) if tools or offers else {}
        upstream = self._servers.add(definition, start=False)
        member = Member(record, upstream)
        member.file_definition = file_definition
        member.decisions = decisions
        self._members.add(member)
        if lists:
            member.offering = ServerLists(upstream, **lists)
            member.tool_count = len(member.offering.tools)
            shown = drop_hidden_tools(member, member.offering, self._context.tool_rules)
            self._junction.live_catalog.expect(shown, listed=False)
        elif self._context.known_tools.declared(record.id):
            self.tools.show(member)
        if wanted:
            self._servers.start(member.name)
        return member

    def _definition(
        self, record: ServerRecord, file_definition: ServerDefinition | None
    ) -> ServerDefinition:
        if file_definition is not None:
            return file_definition._replace(id=record.id)
        return definition_for(record, self._junction.environ, self._junction.settings)

    # -- reading

    def find(self, ref: str) -> ServerRecord:
        """Return a server by id or name, with its status now. Raises NotFound."""
        return self._lifecycle.current_record(self._members.get(ref))

    def all(self, status: str | None = None) -> list[ServerRecord]:
        """Return all servers, or those of one status, by name."""
        found = [self._lifecycle.current_record(member) for member in self._members]
        found.sort(key=lambda record: record.name)
        return [record for record in found if status is None or record.status == status]

    def last_heartbeat(self, ref: str) -> float | None:
        """Return when anything was heard of a server last; None if never. Raises NotFound."""
        return self._lifecycle.last_heartbeat(self._members.get(ref))

    def metrics(self) -> bytes:
        """Return all metrics, as Prometheus reads them."""
        facts = self._lifecycle.facts
        return metrics_of(self._context, self._junction, facts, self._call_metrics)

    def state(self) -> State:
        """Return the totals over all servers, for REST."""
        interval = self._junction.settings.health_interval_ms / 1000
        return state_of(
            self._members,
            self.tools.synced_at,
            interval,
            time.time() - self._started_at,
            self._junction.tool_search.indexed,
            self.skills.classifier.classified,
            self._junction.live_catalog.catalog.tokens,
        )

    async def history(
        self, ref: str, limit: int = 100, before: int | None = None
    ) -> list[HistoryRecord]:
        """Read the history of a server's connection, newest first. Raises NotFound."""
        member = self._members.get(ref)
        await self._lifecycle.flush()
        return await self._context.store.history.of(member.id, limit=limit, before=before)

    # -- changing

    async def refresh(self, ref: str, actor: Principal) -> ToolChanges:
        """Read a server's lists again. Raises NotFound; ServerError when it is not connected."""
        return await self.tools.refresh(ref, actor, self._junction.live_catalog.reread)

    async def register(
        self,
        registration: Registration,
        actor: Principal,
        *,
        auto_connect: bool | None = None,
        declared: Mapping[str, Any] | None = None,
    ) -> ServerRecord:
        """Register a new server; the connection is made in the background.

        ``declared`` has its version, capabilities and metadata. Raises AlreadyExists, and
        InvalidChange for an address or a program that is not allowed.
        """
        if self._members.named(registration.name) is not None:
            raise AlreadyExists(f"there is a server {registration.name!r} already")
        check_registration(registration, self._junction.environ, self._junction.settings)
        wanted = registration.enabled and (
            registration.auto_connect if auto_connect is None else auto_connect
        )
        status = ServerState.CONNECTING if wanted else ServerState.DISCONNECTED
        record = msgspec.structs.replace(
            record_of(registration), status=status.value, **(declared or {})
        )
        async with self._context.audit_act(actor, "server.register", record):
            async with self._registrations:
                try:
                    record = await self._context.store.servers.add(record)
                except AlreadyExists:
                    raise await self.absent.explain_taken_name(record.name) from None
            member = self._add_member(record)
        self._context.publish("server.registered", record, transport_type=record.transport_type)
        return self._lifecycle.current_record(member)

    async def change(
        self,
        ref: str,
        body: Any,
        actor: Principal,
        if_match: int | None = None,
        *,
        declared: Mapping[str, Any] | None = None,
    ) -> ServerRecord:
        """Change a server's definition; it is connected anew only if it is reached another way.

        With ``declared`` it is registered again, maybe with another transport. Raises NotFound,
        FileOwned, InvalidChange, AlreadyExists, VersionConflict.
        """
        async with self._lock_member(self._get_registered(ref)) as member:
            before = member.record
            check_version(before, if_match)
            registration = read_changed(before, body, is_registered_again=declared is not None)
            check_allowed(registration, self._junction.environ, self._junction.settings)
            fields = {**fields_of(registration), **(declared or {})}
            changes = {k: v for k, v in fields.items() if getattr(before, k) != v}
            if not changes:
                return self._lifecycle.current_record(member)
            detail = {"changed": sorted(changes)}
            async with self._context.audit_act(actor, "server.change", before, detail=detail):
                try:
                    after = await self._context.store.servers.change(
                        before.id, changes, version=before.version
                    )
                except AlreadyExists:
                    raise await self.absent.explain_taken_name(registration.name) from None
                await self._apply(member, after, frozenset(changes))
            self._context.publish("server.changed", after, changed=sorted(changes))
            return self._lifecycle.current_record(member)

    async def connect(self, ref: str, actor: Principal) -> tuple[str, str]:
        """Connect a server, wait for the result, and return its status and a message.

        Raises NotFound.
        """
        async with self._lock_member(self._members.get(ref)) as member:
            if member.upstream.link is not None:
                return member.status.value, "it is connected already"
            if not member.record.enabled:
                return member.status.value, "it is disabled; enable it first"
            if member.record.transport_type == UNCONNECTED:
                return member.status.value, member.upstream.definition.fault
            async with self._context.audit_act(actor, "server.connect", member.record):
                if not self._servers.is_running(member.name):
                    self._redefine(member)
                    self._servers.start(member.name)
                    await self._lifecycle.flush()
                else:
                    member.upstream.retry_now()
        return await member.wait_until_settled()

    async def disconnect(
        self, ref: str, actor: Principal, *, force: bool = False
    ) -> tuple[str, int]:
        """Disconnect a server once its calls are done, or after 30 s, or by ``force`` at once.

        Returns its status, and how many calls were under way. Raises NotFound.
        """
        found = self._members.get(ref)
        detail = {"force": force}
        async with self._context.audit_act(actor, "server.disconnect", found.record, detail=detail):
            pending = found.upstream.calls
            if force:
                found.upstream.stop()  # ends the wait for its calls
            async with self._lock_member(found) as member:
                drain = 0.0 if force else DRAIN
                pending = max(pending, await self._servers.stop(member.name, drain))
                await self._lifecycle.flush()  # it stays so, whatever happens to us
                return member.status.value, pending

    async def remove(self, ref: str, actor: Principal, if_match: int | None = None) -> None:
        """Remove a server; calls under way may end. Raises NotFound, FileOwned, VersionConflict."""
        if self._members.find(ref) is None:
            await self.absent.remove(ref, actor, if_match)
            return
        async with self._lock_member(self._get_registered(ref)) as member:
            check_version(member.record, if_match)
            async with self._context.audit_act(actor, "server.remove", member.record):
                await self._context.store.servers.remove(member.id)
                self._servers.remove(member.name, DRAIN)
                self._context.forget_server(member.id)
            self._context.publish("server.removed", member.record)

    async def reload(self, config: Config) -> Reloaded:
        """Apply a new config file. Raises ConfigError: then nothing has changed."""
        async with self.absent.lock:
            return await self._file.reload(config)

    # -- parts

    @asynccontextmanager
    async def _lock_member(self, member: Member) -> AsyncIterator[Member]:
        """Keep others from changing a member. Raises NotFound: it may go while we wait our turn."""
        async with member.lock:
            if self._members.find(member.id) is not member:
                raise NotFound(f"there is no server {member.name!r} any more")
            yield member

    def _get_registered(self, ref: str) -> Member:
        member = self._members.get(ref)
        if member.record.origin == FILE:
            raise FileOwned(member.name)
        return member

    async def _apply(self, member: Member, record: ServerRecord, changes: frozenset[str]) -> None:
        """Apply a stored change: the name first, then the link, where it needs a new one."""
        old, was_strict = member.name, member.record.pin == STRICT
        is_connectable = record.transport_type != UNCONNECTED
        gets_connection = is_connectable and member.record.transport_type == UNCONNECTED
        self._members.replace(member, record)
        if record.name != old:
            renamed = member.upstream.definition._replace(key=record.name)
            self._servers.redefine(old, renamed)
        if not record.enabled:
            await self._servers.stop(member.name, DRAIN)
            self._redefine(member)
        elif "enabled" in changes or gets_connection:
            self._redefine(member)
            if is_connectable:
                self._servers.start(member.name)
        elif changes & RECONNECT_FIELDS and not member.upstream.is_shut:
            definition = self._definition(record, member.file_definition)
            self._servers.replace(definition, DRAIN)
        else:
            self._redefine(member)
        if "health_check_url" in changes:
            self._lifecycle.restart_checks(member)
        if record.pin == STRICT and not was_strict:
            await self.tools.quarantine_unapproved(member)

    def _redefine(self, member: Member) -> None:
        """Give a server its current definition; its link, if it has one, stays."""
        before = member.upstream.definition
        after = self._definition(member.record, member.file_definition)
        if after == before:
            return
        self._servers.redefine(member.name, after)
        if after.tools != before.tools and member.upstream.link is not None:
            self._junction.live_catalog.announce(member.upstream)
