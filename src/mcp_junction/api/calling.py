"""RestCalls: runs tool calls of REST clients through the same pipeline as those of MCP clients.

Each principal has one session here, without a channel to the client: a server that asks the client
something gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from mcp_junction.app import Junction
from mcp_junction.calls.call import Call
from mcp_junction.calls.events import CALL_TOOL
from mcp_junction.calls.methods import Address
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.scope import OPEN, Scope
from mcp_junction.errors import JunctionError, NotFound, RequestError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair, beginnings
from mcp_junction.protocol.versions import (
    CALL_TIMEOUT,
    DENIED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LATEST_HANDSHAKE,
    LINK_LOST,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
)
from mcp_junction.registry.registry import Registry
from mcp_junction.sessions.session import Session
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind
from mcp_junction.upstream.state import ServerState

_ERROR_CODES: Final = {
    SERVER_UNAVAILABLE: "SERVER_UNAVAILABLE",
    CALL_TIMEOUT: "TIMEOUT",
    RATE_LIMITED: "RATE_LIMITED",
    DENIED: "FORBIDDEN",
    LINK_LOST: "EXECUTION_FAILED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
_STATUS_CODES: Final[dict[Any, str]] = {404: "SESSION_NOT_FOUND", 429: "RATE_LIMITED"}
"""Codes for what an HTTP server refused before it ran anything."""
_CONNECT_WAIT: Final = 10.0
"""Seconds that a call waits for a server whose first connection is being made."""
_QUOTED: Final = 200
_REVOKED: Final = "the key was revoked"


class _ErrorObject(msgspec.Struct):
    """The data of an error object of ours."""

    data: dict[str, Any] = {}


class RestReply(NamedTuple):
    """The result of a call, the server that answered (None is Junction itself), and the seconds
    before and after it was sent."""

    payload: bytes
    server: ServerRecord | None
    routing: float
    execution: float


class RestCalls:
    """Runs the calls of REST clients, and knows those under way."""

    def __init__(
        self,
        junction: Junction,
        registry: Registry,
        is_allowed: Callable[[Principal], bool],
    ) -> None:
        self._junction = junction
        self._registry = registry
        self._is_allowed = is_allowed
        self._timeout = junction.settings.invocation_timeout_ms / 1000
        self._sessions: dict[Principal, Session] = {}
        self._running: dict[Call, Principal] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def running(self) -> list[Call]:
        """The calls under way."""
        return list(self._running)

    def end(self, is_allowed: Callable[[Principal], bool], reason: str) -> None:
        """End the calls and sessions of principals that are no longer allowed."""
        for call, principal in list(self._running.items()):
            if not is_allowed(principal):
                call.drop(reason)
        for principal in [one for one in self._sessions if not is_allowed(one)]:
            self._junction.relay.end_session(self._sessions.pop(principal))

    async def __call__(
        self,
        principal: Principal,
        name: str,
        server: str | None,
        arguments: Raw,
        watch: Callable[[Callable[[], None]], None],
    ) -> RestReply:
        """Call a tool. ``watch`` gets a function to call when the client leaves before the end."""
        now = self._junction.clock.now
        began, session = now(), self._get_session(principal)
        record = None if server is None else self._find_server(server, session.scope)
        key = record.name if record is not None else server
        target = Address(TOOLS, name, server=key, takes_own_name=True)
        params = {"name": Raw(b'""'), "arguments": arguments}
        call = Call(session, self._junction.snapshot, CALL_TOOL, target, params, session)
        await self._wait_for_server(call)
        if not self._is_allowed(principal):  # any more
            call.denial = _REVOKED
            call.ended_by = outcomes.failed(DENIED, _REVOKED, Delivery.NOT_SENT)
        outcome = await self._run(call, principal, watch)
        if outcome.kind is not OutcomeKind.RESULT:
            raise await self._make_error(call, outcome, name)
        ended = now()
        sent = call.sent_at or ended
        reached = None if call.route is None else self._find_server(call.route.pair.server)
        return RestReply(bytes(outcome.payload), reached, sent - began, ended - sent)

    async def _run(
        self, call: Call, principal: Principal, watch: Callable[[Callable[[], None]], None]
    ) -> Outcome:
        call.snapshot, call.timeout = self._junction.snapshot, self._timeout
        self._running[call] = principal
        watch(lambda: call.cancel("the client has left"))
        try:
            return await call.snapshot.handle(call)
        finally:
            del self._running[call]

    async def _wait_for_server(self, call: Call) -> None:
        """Wait for the server that a name seems to mean, if it is just being connected."""
        name, server, scope = call.address.name, call.address.server, call.caller.scope
        for key, upstream in self._junction.servers.items():
            if upstream.settled.is_set() or upstream.is_shut:
                continue
            is_meant = key == server if server is not None else name.startswith(beginnings(key))
            if is_meant and self._has_server(scope, key) and not self._is_listed(call):
                limit = min(_CONNECT_WAIT, self._timeout or _CONNECT_WAIT)
                try:
                    await asyncio.wait_for(upstream.settled.wait(), limit)
                except TimeoutError:
                    why = f"it is not connected after {limit:g} s"
                    call.ended_by = outcomes.unavailable(key, why)
                return

    def _is_listed(self, call: Call) -> bool:
        """Whether the catalog has the tool that a call is for."""
        caller, name, server = call.caller, call.address.name, call.address.server
        view = self._junction.snapshot.catalog.view(caller.spelling, TOOLS, caller.scope)
        if server is not None:
            return view.name_of(Pair(server, name)) is not None
        return view.find(name) is not None or view.find_departed(name) is not None

    def _find_server(self, server: str, scope: Scope = OPEN) -> ServerRecord | None:
        """Find a server by id or name, if it exists in a Scope."""
        try:
            record = self._registry.find(server)
        except NotFound:
            return None
        return record if self._has_server(scope, record.name) else None

    def _has_server(self, scope: Scope, key: str) -> bool:
        return self._junction.snapshot.catalog.has_server(scope, key)

    def _get_session(self, principal: Principal) -> Session:
        session = self._sessions.get(principal)
        if session is None:
            usage = self._junction.quotas.of(principal)
            session = Session(
                principal,
                self._junction.spelling(principal=principal),
                _discard,
                usage=usage,
                scopes=self._junction.scopes,
            )
            session.protocol_version = LATEST_HANDSHAKE
            self._sessions[principal] = session
        return session

    # -- errors

    async def _make_error(self, call: Call, outcome: Outcome, name: str) -> JunctionError:
        """Make the error for a call without a result."""
        if call.denial == _REVOKED:
            return RequestError("UNAUTHENTICATED", _REVOKED)
        facts, address = _read_error_data(outcome), call.address
        server = address.server if call.route is None else call.route.pair.server
        record = self._find_server(server or facts.get("server", ""), call.caller.scope)
        if call.route is None and outcome.code == INVALID_PARAMS and name == address.name:
            return await self._not_found_error(call, record, facts)
        if record is None:
            return _own_tool_error(outcome)
        if outcome.code == SERVER_UNAVAILABLE and record.status == ServerState.DISCONNECTED:
            return unavailable_error(record, "it is disconnected")
        if outcome.code == SERVER_UNAVAILABLE and call.route is None and call.ended_by is None:
            return self._away_error(record)
        return self._failure_error(outcome, record)

    async def _not_found_error(
        self, call: Call, record: ServerRecord | None, facts: dict[str, Any]
    ) -> JunctionError:
        """Make the error for a name that no tool has, or several."""
        address = call.address
        if address.server is not None and record is None:
            return NotFound(f"there is no server {address.server!r}")
        if "candidates" in facts:
            words = f"{facts['total']} servers have a tool of this name; use its namespaced name,"
            return RequestError("TOOL_AMBIGUOUS", f"{words} or server_id", facts)
        away = await self._find_storing_server(call.caller.scope, address.name, record)
        if away is not None:
            return self._away_error(away)
        short = address.name[:_QUOTED] + "…" * (len(address.name) > _QUOTED)
        context = {"nearest": facts.get("nearest", []), "delivery": Delivery.NOT_SENT.value}
        return RequestError("TOOL_NOT_FOUND", f"there is no tool {short!r}", context)

    async def _find_storing_server(
        self, scope: Scope, name: str, record: ServerRecord | None
    ) -> ServerRecord | None:
        """Find the server that has a tool in the store, though it is not listed now."""
        if record is not None:
            return record if await self._has_stored_tool(scope, record, name) else None
        for other in self._registry.all():
            own = name.removeprefix(f"{other.name}.")
            if own != name and await self._has_stored_tool(scope, other, own):
                return other
        return None

    async def _has_stored_tool(self, scope: Scope, record: ServerRecord, name: str) -> bool:
        if not scope.admits(TOOLS, Pair(record.name, name)):
            return False
        try:
            found = await self._registry.tools.get(record.id, name)
        except NotFound:
            return False
        return found.gone_at is None and self._registry.tools.state_of(found).enabled

    def _away_error(self, record: ServerRecord) -> RequestError:
        """Make the error for a server whose tools are not listed now."""
        if record.status == ServerState.DISCONNECTED:
            return unavailable_error(record, "it is disconnected")
        words = f"server {record.name!r} is not available: {record.error_message or 'not yet'}"
        return self._unreachable_error(record, words, Delivery.NOT_SENT.value)

    def _failure_error(self, outcome: Outcome, record: ServerRecord) -> RequestError:
        """Make the error for a call that failed at a server."""
        delivery = outcome.delivery
        if delivery is None and outcome.kind is OutcomeKind.ERROR:
            return _server_error(record, outcome)
        told = delivery.value if delivery is not None else None
        code = _error_code(outcome)
        if code == "SERVER_UNAVAILABLE":
            return self._unreachable_error(record, outcome.message, told)
        return RequestError(
            code, outcome.message, {"server": _describe_server(record), "delivery": told}
        )

    def _unreachable_error(
        self, record: ServerRecord, words: str, delivery: str | None
    ) -> RequestError:
        try:
            record = self._registry.find(record.id)  # as it is now
        except NotFound:
            pass
        code = {
            ServerState.ERROR: "SERVER_CONNECTION_FAILED",
            ServerState.CONNECTED: "SESSION_NOT_FOUND",
            ServerState.DEGRADED: "SESSION_NOT_FOUND",
        }.get(ServerState(record.status), "SERVER_UNAVAILABLE")
        return RequestError(code, words, {"server": _describe_server(record), "delivery": delivery})


def _error_code(outcome: Outcome) -> str:
    """Choose the code for a failure."""
    if outcome.kind is OutcomeKind.CANCELLED:
        return "TIMEOUT"
    told = _read_error_data(outcome)
    found = _STATUS_CODES.get(told.get("http_status"))
    if found is not None and outcome.delivery is Delivery.NOT_SENT:
        return found
    code = _ERROR_CODES.get(outcome.code, "EXECUTION_FAILED")
    if code == "EXECUTION_FAILED" and outcome.delivery is Delivery.NOT_SENT:
        return "SERVER_UNAVAILABLE"
    if code == "INTERNAL_ERROR" and "server" in told:
        return "EXECUTION_FAILED"  # the server's, not ours
    return code


def _read_error_data(outcome: Outcome) -> dict[str, Any]:
    try:
        return msgspec.json.decode(outcome.payload, type=_ErrorObject).data
    except msgspec.DecodeError:
        return {}


def _discard(_: bytes) -> None:
    """Drop what is sent to a session without a channel."""


def _describe_server(record: ServerRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, "status": record.status}


def unavailable_error(record: ServerRecord, why: str) -> RequestError:
    """Make the error for a server that cannot be reached now."""
    context = {"server": _describe_server(record), "delivery": Delivery.NOT_SENT.value}
    words = f"server {record.name!r} is not available: {why}"
    return RequestError("SERVER_UNAVAILABLE", words, context)


def _server_error(record: ServerRecord, outcome: Outcome) -> RequestError:
    """Pass on the server's own error."""
    context = {
        "server": _describe_server(record),
        "delivery": Delivery.EXECUTED.value,
        "error": Raw(bytes(outcome.payload)),
    }
    return RequestError("EXECUTION_FAILED", outcome.message, context)


def _own_tool_error(outcome: Outcome) -> RequestError:
    """Make the error for a call of Junction's own tools that reached no server."""
    code = "TOOL_NOT_FOUND" if outcome.code == INVALID_PARAMS else _error_code(outcome)
    told = outcome.delivery.value if outcome.delivery is not None else None
    return RequestError(code, outcome.message, {"delivery": told})
