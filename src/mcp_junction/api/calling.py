"""RestCalls: tool calls over REST, on the same path through Junction as everybody else's.

A principal has one session here, which nobody listens to: a server that asks something on the way
is told that there is no one to ask.
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
from mcp_junction.catalog.kinds import TOOLS
from mcp_junction.catalog.view import View
from mcp_junction.errors import NotFound, RequestError
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
from mcp_junction.upstream.state import SERVING, ServerState

_OF_CODE: Final = {
    SERVER_UNAVAILABLE: "SERVER_UNAVAILABLE",
    CALL_TIMEOUT: "TIMEOUT",
    RATE_LIMITED: "RATE_LIMITED",
    DENIED: "FORBIDDEN",
    LINK_LOST: "EXECUTION_FAILED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
_OF_STATUS: Final[dict[Any, str]] = {404: "SESSION_NOT_FOUND", 429: "RATE_LIMITED"}
"""What an HTTP server refused before it ran anything: it lost our session, or has enough to do."""
_ARRIVAL: Final = 10.0
"""How long a call waits for a server whose first connection is being made."""
_SHOWN_CANDIDATES: Final = 20
_QUOTED: Final = 200


class _CallNotes(msgspec.Struct):
    """What an error object of ours says beside its message."""

    data: dict[str, Any] = {}


class Done(NamedTuple):
    """A call that was answered: by whom (None is Junction itself), how long until it was sent, and
    how long then."""

    payload: bytes
    server: ServerRecord | None
    routing: float
    execution: float


class RestCalls:
    """The calls of REST clients."""

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
        """End what is no longer allowed to whom it is for."""
        for call, principal in list(self._running.items()):
            if not is_allowed(principal):
                call.drop(reason)
        for principal in [one for one in self._sessions if not is_allowed(one)]:
            self._junction.end_session(self._sessions.pop(principal))

    async def __call__(
        self,
        principal: Principal,
        name: str,
        server: str | None,
        arguments: Raw,
        watch: Callable[[Callable[[], None]], None],
    ) -> Done:
        """Call a tool. ``watch`` is given what to do when the client leaves before the end."""
        now = self._junction.clock.now
        began = now()
        session = self._session(principal)
        params = {"name": Raw(b'""'), "arguments": arguments}
        try:
            spelled, record = await self._resolve_or_wait(session, name, server)
        except (RequestError, NotFound) as error:
            await _record_refused(self._call(session, name, params), INVALID_PARAMS, str(error))
            raise
        call = self._call(session, spelled, params)
        outcome = await self._handled(call, principal, watch)
        record = record or self._reached(call)
        if outcome.kind is not OutcomeKind.RESULT:
            raise self._failure(outcome, record) if record is not None else _own_failure(outcome)
        ended = now()
        sent = call.sent_at or ended
        return Done(bytes(outcome.plain_payload), record, sent - began, ended - sent)

    def _call(self, session: Session, name: str, params: dict[str, Raw]) -> Call:
        target = Address(TOOLS, name)
        return Call(session, self._junction.snapshot, CALL_TOOL, target, params, session)

    async def _handled(
        self, call: Call, principal: Principal, watch: Callable[[Callable[[], None]], None]
    ) -> Outcome:
        """The outcome of a call, in the time it is given."""
        if not self._is_allowed(principal):  # while it waited for its server
            words = "the key was revoked"
            await _record_refused(call, DENIED, words)
            raise RequestError("UNAUTHENTICATED", words)
        call.timeout = self._timeout
        self._running[call] = principal
        watch(lambda: call.cancel("the client has left"))
        try:
            return await call.snapshot.handle(call)
        finally:
            del self._running[call]

    def _session(self, principal: Principal) -> Session:
        session = self._sessions.get(principal)
        if session is None:
            usage = self._junction.quotas.of(principal)
            session = Session(
                principal,
                self._junction.spelling(),
                _nowhere,
                usage=usage,
                scopes=self._junction.scopes,
            )
            session.protocol_version = LATEST_HANDSHAKE
            self._sessions[principal] = session
        return session

    # -- which tool is meant

    async def _resolve_or_wait(
        self, session: Session, name: str, server: str | None
    ) -> tuple[str, ServerRecord | None]:
        """Resolve a name; an unknown one again after waiting for its server to come up."""
        try:
            return await self._resolved(session, name, server)
        except RequestError:
            if not await self._came(name, server):
                raise
            return await self._resolved(session, name, server)

    async def _came(self, name: str, server: str | None) -> bool:
        """Wait for the server that seems to be meant, if it is just being connected; whether it
        was. Raises RequestError when it takes too long."""
        meant = None if server is None else self._registry.find(server).name
        for key, upstream in self._junction.servers.items():
            if upstream.settled.is_set() or upstream.is_shut:
                continue
            if key == meant or (meant is None and name.startswith(beginnings(key))):
                limit = min(_ARRIVAL, self._timeout or _ARRIVAL)
                try:
                    await asyncio.wait_for(upstream.settled.wait(), limit)
                except TimeoutError:
                    words = f"it is not connected after {limit:g} s"
                    raise unavailable(self._registry.find(key), words) from None
                return True
        return False

    async def _resolved(
        self, session: Session, name: str, server: str | None
    ) -> tuple[str, ServerRecord | None]:
        """The name of a tool in the session's spelling, and whose it is; None is Junction's."""
        catalog, place = self._junction.snapshot.catalog, (TOOLS, session.scope)
        if server is not None:
            shown = catalog.show(session.spelling, *place)
            return await self._of_server(shown, name, self._registry.find(server))
        view = catalog.view(session.spelling, *place)
        if name in view.own:
            return name, None
        route = view.find(name) or view.find_departed(name)
        if route is not None:
            catalog.note_used(name, session.spelling, *place)
            return name, self._standing(route.pair.server)
        view = catalog.show(session.spelling, *place)
        pairs = view.pairs_called(name)
        if len(pairs) > 1:
            raise _ambiguous(view, pairs)
        if pairs:
            return view.name_of(pairs[0]) or name, self._standing(pairs[0].server)
        raise await self._away(name) or _unknown(view, name)

    async def _of_server(
        self, view: View, name: str, record: ServerRecord
    ) -> tuple[str, ServerRecord]:
        spelled = view.name_of(Pair(record.name, name))
        if spelled is not None:
            return spelled, self._standing(record.name)
        route = view.find(name)
        if route is not None and route.pair.server == record.name:
            return name, self._standing(record.name)
        if record.status not in SERVING or await self._has(record, name):
            raise self._absent(record)
        raise _unknown(view, name)

    def _reached(self, call: Call) -> ServerRecord | None:
        """The server that a tool of Junction's own has passed a call on to, if it has."""
        try:
            return None if call.route is None else self._registry.find(call.route.pair.server)
        except NotFound:  # removed meanwhile
            return None

    def _standing(self, key: str) -> ServerRecord:
        """The server as it stands. Raises at once where waiting for it would be in vain."""
        record = self._registry.find(key)
        if record.status == ServerState.DISCONNECTED:
            raise self._absent(record)
        return record

    async def _away(self, name: str) -> RequestError | None:
        """The error for a tool that is stored, of a server that is not connected."""
        for record in self._registry.all():
            own = name.removeprefix(f"{record.name}.")
            if own != name and await self._has(record, own):
                return self._absent(record)
        return None

    def _absent(self, record: ServerRecord) -> RequestError:
        """The error for a server whose tools are not there."""
        if record.status == ServerState.DISCONNECTED:
            return unavailable(record, "it is disconnected")
        words = f"server {record.name!r} is not available: {record.error_message or 'not yet'}"
        return self._not_there(record, words, Delivery.NOT_SENT.value)

    async def _has(self, record: ServerRecord, name: str) -> bool:
        try:
            found = await self._registry.tools.get(record.id, name)
        except NotFound:
            return False
        return found.gone_at is None and found.enabled and not found.quarantined

    # -- what is answered

    def _failure(self, outcome: Outcome, record: ServerRecord) -> RequestError:
        """The error for a call that was not answered with a result."""
        delivery = outcome.delivery
        if delivery is None and outcome.kind is OutcomeKind.ERROR:
            return _refused_by(record, outcome)
        told = delivery.value if delivery is not None else None
        code = _code_of(outcome)
        if code == "SERVER_UNAVAILABLE":
            return self._not_there(record, outcome.message, told)
        return RequestError(code, outcome.message, {"server": _info(record), "delivery": told})

    def _not_there(self, record: ServerRecord, words: str, delivery: str | None) -> RequestError:
        try:
            record = self._registry.find(record.id)  # as it is now
        except NotFound:
            pass
        code = {
            ServerState.ERROR: "SERVER_CONNECTION_FAILED",
            ServerState.CONNECTED: "SESSION_NOT_FOUND",
            ServerState.DEGRADED: "SESSION_NOT_FOUND",
        }.get(ServerState(record.status), "SERVER_UNAVAILABLE")
        return RequestError(code, words, {"server": _info(record), "delivery": delivery})


async def _record_refused(call: Call, code: int, words: str) -> None:
    """Send a refused call through the pipeline, so that it is recorded like any other."""
    call.ended_by = outcomes.failed(code, words, Delivery.NOT_SENT)
    if code == DENIED:
        call.denial = words
    await call.snapshot.handle(call)


def _code_of(outcome: Outcome) -> str:
    """Which of our codes a failure is."""
    if outcome.kind is OutcomeKind.CANCELLED:
        return "TIMEOUT"
    told = _data_of(outcome)
    found = _OF_STATUS.get(told.get("http_status"))
    if found is not None and outcome.delivery is Delivery.NOT_SENT:
        return found
    code = _OF_CODE.get(outcome.code, "EXECUTION_FAILED")
    if code == "EXECUTION_FAILED" and outcome.delivery is Delivery.NOT_SENT:
        return "SERVER_UNAVAILABLE"
    if code == "INTERNAL_ERROR" and "server" in told:
        return "EXECUTION_FAILED"  # the server's, not ours
    return code


def _data_of(outcome: Outcome) -> dict[str, Any]:
    try:
        return msgspec.json.decode(outcome.payload, type=_CallNotes).data
    except msgspec.DecodeError:
        return {}


def _nowhere(_: bytes) -> None:
    """Nobody listens."""


def _info(record: ServerRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, "status": record.status}


def unavailable(record: ServerRecord, why: str) -> RequestError:
    """The error for a server that nothing can be asked of now."""
    context = {"server": _info(record), "delivery": Delivery.NOT_SENT.value}
    words = f"server {record.name!r} is not available: {why}"
    return RequestError("SERVER_UNAVAILABLE", words, context)


def _refused_by(record: ServerRecord, outcome: Outcome) -> RequestError:
    """The server's own error, passed on as it is."""
    context = {
        "server": _info(record),
        "delivery": Delivery.EXECUTED.value,
        "error": Raw(bytes(outcome.payload)),
    }
    return RequestError("EXECUTION_FAILED", outcome.message, context)


def _own_failure(outcome: Outcome) -> RequestError:
    """The error for a call of Junction's own tools that reached no server."""
    code = "TOOL_NOT_FOUND" if outcome.code == INVALID_PARAMS else _code_of(outcome)
    told = outcome.delivery.value if outcome.delivery is not None else None
    return RequestError(code, outcome.message, {"delivery": told})


def _ambiguous(view: View, pairs: list[Pair]) -> RequestError:
    names = [view.name_of(pair) for pair in pairs[:_SHOWN_CANDIDATES]]
    return RequestError(
        "TOOL_AMBIGUOUS",
        f"{len(pairs)} servers have a tool of this name; use its namespaced name, or server_id",
        {"candidates": names, "total": len(pairs), "delivery": Delivery.NOT_SENT.value},
    )


def _unknown(view: View, name: str) -> RequestError:
    short = name if len(name) <= _QUOTED else name[:_QUOTED] + "…"
    context = {"nearest": view.nearest(short), "delivery": Delivery.NOT_SENT.value}
    return RequestError("TOOL_NOT_FOUND", f"there is no tool {short!r}", context)
