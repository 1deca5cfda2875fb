"""RestCalls: runs tool calls of REST clients through the same pipeline as those of MCP clients.

Each principal has one session here, without a channel to the client: a server that asks the client
something gets an error. The answers to failed calls: ``call_errors.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Raw

from mcp_junction.api.call_errors import REVOKED, CallErrors
from mcp_junction.app import Junction
from mcp_junction.calls.call import NOTHING_CARRIED, Call, Carried
from mcp_junction.calls.events import CALL_TOOL
from mcp_junction.calls.methods import Address
from mcp_junction.catalog.items import TOOLS
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair, name_prefixes
from mcp_junction.protocol.versions import DENIED, LATEST_HANDSHAKE
from mcp_junction.registry.registry import Registry
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import wait_until_set
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

_CONNECT_WAIT: Final = 10.0
"""Seconds that a call waits for a server whose first connection is being made."""


class RestRequest(NamedTuple):
    """A call that a REST client asks for."""

    principal: Principal
    name: str
    server: str | None
    """The id or name of the server that ``name`` is its own name for a tool at."""
    arguments: Raw
    watch: Callable[[Callable[[], None]], None]
    """Gets a function to call when the client leaves before the end."""
    carried: Carried = NOTHING_CARRIED
    is_invoke: bool = False


class RestOutcome(NamedTuple):
    """How a call ended, and when it began and ended."""

    call: Call
    outcome: Outcome
    began: float
    ended: float


class RestCalls:
    """Runs the calls of REST clients, and knows those under way."""

    def __init__(
        self,
        junction: Junction,
        registry: Registry,
        is_allowed: Callable[[Principal], bool],
    ) -> None:
        self._junction = junction
        self.errors = CallErrors(junction, registry)
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

    async def run(self, request: RestRequest) -> RestOutcome:
        """Make a call, and wait for its end."""
        now, principal = self._junction.clock.now, request.principal
        began, session = now(), self._get_session(principal)
        call = self._make_call(request, session)
        await self._wait_for_server(call)
        if not self._is_allowed(principal):  # any more
            call.denial = REVOKED
            call.ended_by = outcomes.failed(DENIED, REVOKED, Delivery.NOT_SENT)
        call.snapshot = self._junction.snapshot
        self._running[call] = principal
        request.watch(lambda: call.cancel("the client has left"))
        try:
            outcome = await call.snapshot.handle(call)
        finally:
            del self._running[call]
        return RestOutcome(call, outcome, began, now())

    def _make_call(self, request: RestRequest, session: Session) -> Call:
        server, carried = request.server, request.carried
        record = None if server is None else self.errors.find_server(server, session.scope)
        key = record.name if record is not None else server
        target = Address(TOOLS, request.name, server=key, takes_own_name=True)
        params = {"name": Raw(b'""'), "arguments": request.arguments}
        call = Call(session, self._junction.snapshot, CALL_TOOL, target, params, session)
        call.carried, call.timeout = carried, carried.timeout
        call.attempt_timeout, call.is_invoke = self._timeout, request.is_invoke
        if call.user is not request.principal:
            call.usage = self._junction.quotas.of(call.user)
        return call

    async def _wait_for_server(self, call: Call) -> None:
        """Wait for the server that a name seems to mean, if it is just being connected."""
        name, server, scope = call.address.name, call.address.server, call.caller.scope
        has_server = self._junction.snapshot.catalog.has_server
        for key, upstream in self._junction.servers.items():
            if upstream.settled.is_set() or upstream.is_shut:
                continue
            is_meant = key == server if server is not None else name.startswith(name_prefixes(key))
            if is_meant and has_server(scope, key) and not self._is_listed(call):
                limit = min(_CONNECT_WAIT, self._timeout or _CONNECT_WAIT)
                if not await wait_until_set(upstream.settled, limit):
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


def _discard(_: bytes) -> None:
    """Drop what is sent to a session without a channel."""
