"""ServerLifecycle: records and announces what happens to servers, and has their health watched.

What happens to the credentials for servers is announced and audited here, too, without secrets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from mcp_junction.calls.events import CallEnded
from mcp_junction.credentials.credentials import STATE_CHANGED
from mcp_junction.credentials.source import CredentialSource
from mcp_junction.errors import NotFound, StoreUnavailable
from mcp_junction.health.probes import ProbeSchedule
from mcp_junction.health.verdict import HealthFacts
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.health_watch import HealthWatch
from mcp_junction.registry.member import Member
from mcp_junction.store.records import STATUS_FIELDS, HistoryEvent, ServerRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope, wait_until_set
from mcp_junction.telemetry.events import CALL_COMPLETED, OutcomeName
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.state import ServerState

log = logging.getLogger("mcp_junction.registry")

_STORE_EVERY: Final = 5.0
_PAUSE: Final = 0.05
_RETRY: Final = 0.5
_MOST: Final = 10_000
_FAILED_SIGN_INS: Final = ("refresh_failed", "login_refused", "revocation_failed")


class HistoryWriter:
    """The one writer of the connection history and of the status of servers."""

    def __init__(self, store: Store, tasks: TaskScope) -> None:
        self._store = store
        self._history: deque[tuple[str, HistoryEvent, dict[str, Any]]] = deque(maxlen=_MOST)
        self._statuses: dict[str, dict[str, Any]] = {}
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks = tasks

    def begin(self) -> None:
        self._tasks.supervise("history", self._run)

    def add(self, server_id: str, event: HistoryEvent, details: Mapping[str, Any]) -> None:
        """Write, soon, that something has happened to a server's connection."""
        self._history.append((server_id, event, dict(details)))
        self._more.set()

    def set_status(self, server_id: str, status: Mapping[str, Any]) -> None:
        """Write, soon, how a server is now."""
        self._statuses.setdefault(server_id, {}).update(status)
        self._more.set()

    async def flush(self, limit: float = 3.0) -> None:
        """Wait until all is written, but not for ever."""
        self._idle.clear()
        self._more.set()
        if not await wait_until_set(self._idle, limit):
            log.warning("the store does not take what happened to servers")

    async def _run(self) -> None:
        self._more.set()  # there may be something left that this task failed with before
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                await self._write()
                if not (self._history or self._statuses):
                    self._idle.set()
            except StoreUnavailable:
                self._more.set()
                await asyncio.sleep(_RETRY)
            await asyncio.sleep(_PAUSE)

    async def _write(self) -> None:
        while self._history:
            server_id, event, details = self._history[0]
            try:
                await self._store.history.add(server_id, event, details)
            except StoreUnavailable:
                raise
            except NotFound:
                pass  # the server has been removed meanwhile, and its history with it
            except Exception:  # one row that cannot be written must not keep back the others
                log.exception("a row of history is lost")
            self._history.popleft()
        statuses, self._statuses = self._statuses, {}
        if statuses:
            try:
                await self._store.servers.set_status(statuses)
            except StoreUnavailable:
                self._statuses = statuses | self._statuses
                raise
            except Exception:  # it is stored again when it changes
                log.exception("the status of servers cannot be stored")


class ServerLifecycle:
    """Follows every member: its status, its history and its health."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        settings = context.settings
        schedule = ProbeSchedule(
            settings.health_interval_ms / 1000, settings.health_timeout_ms / 1000
        )
        self._watch = HealthWatch(
            context.clock, schedule, context.members.find, context.supervision
        )
        self._history = HistoryWriter(context.store, context.tasks)
        self._stored_status: dict[str, dict[str, Any]] = {}
        self._heard_at: dict[str, float] = {}
        """When each server connected, or announced something, last."""

    def begin(self) -> None:
        self._history.begin()
        self._context.tasks.supervise("server states", self._store_all_statuses)

    async def end(self) -> None:
        """End the checks, and store what is known of every server."""
        await self._watch.close()
        for member in self._context.members:
            self._store_status(member)
        await self._history.flush()

    def current_record(self, member: Member) -> ServerRecord:
        """A member's record with its status now."""
        return member.current_record(self._watch.facts(member), self._context.clock.now())

    def last_heartbeat(self, member: Member) -> float | None:
        """Return when anything was heard of a member last: an answer, a list, a greeting."""
        answered = self._watch.last_answer(member)
        if answered is not None:
            answered = time.time() - (self._context.clock.now() - answered)
        stored = member.record.last_health_check if member.record.reachable else None
        times = (answered, self._heard_at.get(member.id), stored)
        return max((at for at in times if at is not None), default=None)

    def facts(self, member: Member) -> HealthFacts:
        return self._watch.facts(member)

    def restart_checks(self, member: Member) -> None:
        """Check it in the way that its record says now."""
        if member.is_serving:
            self._watch.watch(member)

    async def flush(self) -> None:
        """Wait until everything that happened is in the store."""
        await self._history.flush()

    # -- what happens

    def follow(self, event: ServerChanged) -> None:
        """Record a change of a server, and announce it."""
        member = self._context.members.find(event.server.definition.id)
        if member is None or not self._context.is_open:
            return
        match event.change:
            case ServerChange.STARTING:
                self._note_start(member)
            case ServerChange.REPLACED:
                member.replace_upstream(event.server)
                self._watch.unwatch(member, reachable=True)
                self._note_start(member)
            case ServerChange.STATE | ServerChange.STOPPED:
                self._note_state(member)
            case ServerChange.LISTS | ServerChange.RENEWED:
                self._heard_at[member.id] = time.time()
            case ServerChange.REMOVED:
                self._heard_at.pop(member.id, None)
                self._context.members.remove(member)
                self._watch.forget(member)
                self._stored_status.pop(member.id, None)

    def _note_start(self, member: Member) -> None:
        before, member.status = member.status, ServerState.CONNECTING
        self._announce(member, before)

    def _note_state(self, member: Member) -> None:
        before, after = member.status, member.shown_state()
        if before is after:
            return
        member.status = after
        if after is ServerState.CONNECTED and before is not ServerState.DEGRADED:
            self._note_connection(member, before)
        elif after is ServerState.ERROR:
            self._note_failure(member)
        elif after is ServerState.DISCONNECTED:
            self._note_end(member)
        self._announce(member, before)

    def _announce(self, member: Member, before: ServerState) -> None:
        self._context.publish(
            "server.status_changed",
            member.record,
            status=member.status.value,
            previous=before.value,
            message=self.current_record(member).error_message,
        )
        self._store_status(member)

    def _note_connection(self, member: Member, before: ServerState) -> None:
        member.connected_at = self._heard_at[member.id] = time.time()
        self._watch.watch(member)
        details: dict[str, Any] = {"seconds": _round(member.upstream.start_seconds)}
        event = HistoryEvent.CONNECTED
        if before is ServerState.ERROR and member.down_since is not None:
            event = HistoryEvent.RECONNECT
            details["down_seconds"] = _round(time.time() - member.down_since)
            details["attempts"] = member.upstream.failures
        greeting = member.upstream.greeting
        if greeting is not None:
            details["protocol_version"] = greeting.protocol_version
        member.down_since = None
        self._history.add(member.id, event, details)

    def _note_failure(self, member: Member) -> None:
        error = member.upstream.error
        member.down_since = time.time()
        refused = error is not None and error.refuses_credentials
        self._watch.unwatch(member, refused=refused)
        details: dict[str, Any] = {}
        if error is not None:
            details = {"message": error.message, "phase": error.phase.value}
        self._history.add(member.id, HistoryEvent.ERROR, details)

    def _note_end(self, member: Member) -> None:
        member.connected_at = member.down_since = None
        self._watch.unwatch(member)
        self._history.add(member.id, HistoryEvent.DISCONNECTED, {})

    def observe_call(self, ended: CallEnded) -> None:
        """Count a call for the health of its server, and announce it to those who read the bus."""
        if self._context.is_open:
            self._watch.observe_call(ended)
            if self._context.bus.has_readers:
                self._announce_call(ended)

    def _announce_call(self, ended: CallEnded) -> None:
        delivery, carried = ended.outcome.delivery, ended.carried
        outcome = ended.outcome_name if ended.denial is None else OutcomeName.DENIED
        data = {
            "server_id": ended.server_id,
            "name": ended.target if ended.route is not None else ended.name[:200],
            "method": ended.method,
            "agent": ended.agent_id,
            "principal": ended.principal.id,
            "role": ended.principal.role.value,
            "correlation_id": ended.correlation_id,
            "ticket_id": carried.ticket_id,
            "task_id": carried.task_id,
            "success": outcome is OutcomeName.OK,
            "outcome": outcome.value,
            "attempts": ended.outcome.attempts,
            "delivery": delivery.value if delivery is not None else None,
            "latency_ms": _round(ended.seconds * 1000),
        }
        self._context.bus.publish_transient(CALL_COMPLETED, data, ended.server_id)

    def note_credential(
        self, source: CredentialSource, action: str, detail: str, actor: str
    ) -> None:
        """Announce the new state of a credential, or audit what else happened to it."""
        member = self._context.members.find(source.definition.id)
        if member is None or not self._context.is_open:
            return
        if action == STATE_CHANGED:
            facts = source.facts
            self._context.publish(
                "server.auth_changed",
                member.record,
                state=source.state.value,
                subject=source.subject,
                issuer=facts.issuer if facts is not None else None,
                reason=detail or None,
            )
            return
        audit = self._context.audit
        audit.record(
            audit.entry(
                "outcome",
                actor,
                f"auth.{action}",
                server_id=member.id,
                target=member.name,
                outcome=OutcomeName.ERROR if action in _FAILED_SIGN_INS else OutcomeName.OK,
                detail={"subject": source.subject, **({"reason": detail} if detail else {})},
            )
        )

    # -- status in the store

    def _store_status(self, member: Member) -> None:
        record = self.current_record(member)
        status = {name: getattr(record, name) for name in STATUS_FIELDS}
        if self._stored_status.get(member.id) != status:
            self._stored_status[member.id] = status
            self._history.set_status(member.id, status)

    async def _store_all_statuses(self) -> None:
        """Store what checks and calls have shown, for those who only have the store."""
        while True:
            await self._context.clock.sleep(_STORE_EVERY)
            for member in self._context.members:
                self._store_status(member)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
