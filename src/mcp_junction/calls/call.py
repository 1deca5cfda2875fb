"""Call: one routed request of any kind, and the Snapshot that it is answered from.

Carried: what its request says about it beside the params that go to the server. REST has it in the
body, HTTP in headers, MCP in members of ``_meta`` that begin with ``junction/``. They are taken out
where a request is accepted, before anything is logged, hashed, cached or forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcp_junction.calls.methods import Address, RouteCache
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import TOOLS, ListKind, Route
from mcp_junction.catalog.scope import Scope
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode, envelope
from mcp_junction.protocol.correlation import new_correlation_id
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import DENIED, LOG_MESSAGE, SERVER_UNAVAILABLE, Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.handshake import Hello
from mcp_junction.upstream.outcome import CALLER_DEADLINE, CANCELLATION, Delivery, Outcome
from mcp_junction.upstream.upstream import Upstream

if TYPE_CHECKING:  # the stdio mode does without them
    from mcp_junction.governance.tool_facts import ToolFacts
    from mcp_junction.policy.arguments import Arguments
    from mcp_junction.policy.decision import PolicyDecision
    from mcp_junction.policy.grants import Grant
    from mcp_junction.policy.tokens import PresentedToken
    from mcp_junction.resilience.breakers import Permit
    from mcp_junction.telemetry.otlp import TraceContext

Handler = Callable[["Call"], Awaitable[Outcome]]


async def answer_with(outcome: Outcome) -> Outcome:
    """Answer a call in a stage that is a plain function."""
    return outcome


class Carried(msgspec.Struct, frozen=True, gc=False):
    """What a call carries for us, and no server sees."""

    agent_id: str | None = None
    """The agent that it is made for, by an administrator or an orchestrator."""
    correlation_id: str | None = None
    """The caller's own; where there is none, Junction makes one."""
    ticket_id: str | None = None
    task_id: str | None = None
    idempotency_key: str | None = None
    token: PresentedToken | None = None
    traceparent: str | None = None
    """The caller's place in a trace, where a header of its request says it."""
    timeout: float = 0.0
    """Seconds after which the call ends; 0 is no limit of the caller's."""


NOTHING_CARRIED: Final = Carried()


class Snapshot(msgspec.Struct, frozen=True):
    """One generation of everything the data plane reads."""

    catalog: Catalog
    handlers: Mapping[str, Handler]
    """The path of a call, by its method."""
    servers: Mapping[str, Upstream] = {}
    """All servers that are wanted, connected or not."""
    route_cache: RouteCache = msgspec.field(default_factory=RouteCache)
    """The routes that were found here before."""

    def handle(self, call: Call) -> Awaitable[Outcome]:
        """Take a call down its path; the outcome comes back up."""
        return self.handlers[call.method](call)

    @property
    def generation(self) -> int:
        return self.catalog.generation


class Channel(Protocol):
    """Where a client hears what belongs to one call."""

    def send(self, frame: bytes) -> None: ...

    def offer(self, frame: bytes) -> None:
        """Send what may be dropped when the client does not read."""
        ...


class Caller(Channel, Protocol):
    """What a call needs of the session or the stateless client it belongs to."""

    era: Era
    principal: Principal
    spelling: Spelling
    endpoint: Endpoint
    usage: QuotaUsage
    """What its principal uses of its quota."""

    takes_links: bool
    """Whether it understands links to resources in the results of tools."""

    def ask(self, method: str, params: Raw, channel: Channel) -> Awaitable[Outcome]: ...

    def wants_log(self, params: Raw, level: int | None) -> bool:
        """Whether it wants a log message; ``level`` is what the request itself says."""
        ...

    @property
    def scope(self) -> Scope:
        """What it may see, by the policy as it is now."""
        ...

    @property
    def questions(self) -> frozenset[str]:
        """What it can be asked."""
        ...

    @property
    def envelope(self) -> Raw:
        """The ``_meta`` that describes it to stateless servers."""
        ...

    def hello(self) -> Hello: ...


class Call(msgspec.Struct, eq=False):
    """One routed request. Holds the snapshot it started with, whatever changes meanwhile.

    What one attempt needs is the Attempt's: nothing of it is written here.
    """

    caller: Caller
    snapshot: Snapshot
    method: str
    address: Address
    params: dict[str, Raw]
    channel: Channel
    progress_token: Raw | None = None
    """The client's own, if it wants to hear of progress."""
    route: Route | None = None
    log_level: int | None = None
    """The least level of log messages that a stateless request asks for; None is none."""
    has_plain_meta: bool = False
    """Whether ``_meta`` holds nothing but what a stateless client says of itself."""
    timeout: float = 0.0
    """Seconds after which the call ends, whatever its attempts have left; 0 is never."""
    deadline: float = 0.0
    flight: Flight | None = None
    """The flight of the current attempt, or of the last one."""
    attempts: int = 0
    is_retried: bool = False
    """Whether the stage ``retry`` decides about all its attempts; else a link may replay it."""
    sent_at: float = 0.0
    """When its first attempt was made, by the clock of the pipeline; 0 is never."""
    waited: float = 0.0
    """Seconds that its attempts waited for a link."""
    carried: Carried = NOTHING_CARRIED
    """What the request carried for Junction itself."""
    is_plain: bool = False
    """Whether it carries nothing for us, continues nothing, and is for a server's own thing that
    is neither high-risk nor has fallbacks. ``authorize`` finds out; the pipeline says for what."""
    facts: ToolFacts | None = None
    """What is known of its target, where calls are governed."""
    decision: PolicyDecision | None = None
    """What the policy decided about it, where there is one."""
    policy_version: int = 0
    """The version of the policy that this was decided by."""
    grant: Grant | None = None
    """The grant that it passes by, where limits or tokens chose one."""
    passed_by: str = ""
    """The id of the grant that let it pass with a token, or the call that it continues."""
    origin: tuple[Route, ListKind] | None = None
    """Of a task: what the call that made it was for."""
    arguments: Arguments | None = None
    """What its arguments are, where they were read and are needed again."""
    is_invoke: bool = False
    """Whether it came by ``invoke``, which has its own setting for checking arguments."""
    attempt_timeout: float = 0.0
    """Seconds that one attempt may take where neither the tool nor its server has a limit."""
    is_resume: bool = False
    """Whether it continues a call that was answered with a question: it is never retried."""
    resumed_state: Raw | None = None
    """What a stateless server wants back from a resumed call, in place of our ticket."""
    permit: Permit | None = None
    """What its attempt holds of its circuits, unless ``breaker`` keeps that itself."""
    claim: str | None = None
    """The claim of its idempotency key, once there are any."""
    intent: str | None = None
    """Its intent: the audit row that was stored before it was sent."""
    denial: str | None = None
    """Why the policy refused it, if it did."""
    spoke: bool = False
    """Whether anything was relayed to the caller."""
    may_have_run: bool = False
    """Whether it may have run before its current attempt: then it never counts as not sent."""
    substitute: Call | None = None
    """The call of a fallback target that is made in its place at the moment."""
    in_place_of: tuple[Route, dict[str, Raw]] | None = None
    """Of the call of a fallback target: the route and the params of what was asked for."""
    resumed_at: tuple[str, str] | None = None
    """Of a resumed call: the id of the server and the tool of the fallback target that asked."""
    asking: int = 0
    ended_by: Outcome | None = None
    """How it was ended from our side, if it was."""
    usage: QuotaUsage | None = None
    """What is used of the quota of the agent that it is made for; None is that of the caller."""
    _ending: asyncio.Event | None = None
    has_unmeasured_attempt: bool = False
    """Whether its first attempt is under way, and is counted with the call if it succeeds."""
    trace: TraceContext | None = None
    """Its place in a trace, where calls are traced."""
    own_correlation_id: str | None = None
    """The one that was made here, because the caller has sent none."""

    @property
    def name(self) -> str:
        """The name or address the caller used."""
        return self.address.name

    @property
    def agent_id(self) -> str:
        """Under whose name it is made: the agent that the caller named, or the caller itself."""
        return self.carried.agent_id or self.caller.principal.id

    @property
    def user(self) -> Principal:
        """Whose it is where callers are told apart: another agent is another user."""
        agent_id, principal = self.carried.agent_id, self.caller.principal
        if agent_id is None or agent_id == principal.id:
            return principal
        return replace(principal, acting_for=agent_id)

    @property
    def correlation_id(self) -> str:
        """The caller's own, or one that is made when it is first asked for."""
        found = self.carried.correlation_id or self.own_correlation_id
        if found is None:
            found = self.own_correlation_id = new_correlation_id()
        return found

    def read_arguments(self) -> Arguments:
        """Read its arguments, or return what was read before. Raises ArgumentsError."""
        if self.arguments is None:
            from mcp_junction.policy.arguments import read_arguments

            self.arguments = read_arguments(self.params.get("arguments", b"{}"), is_shallow=True)
        return self.arguments

    # -- downward: ending it from our side

    def cancel(self, reason: str) -> None:
        """End it because the caller no longer wants it."""
        self._end(outcomes.cancelled(reason, self.delivery), reason)

    def expire(self, seconds: float) -> None:
        """End it because its time is over."""
        server = self.route.pair.server if self.route is not None else ""
        late = outcomes.timed_out(server, self.delivery, seconds, CALLER_DEADLINE)
        self._end(late, "timed out")

    def drop(self, reason: str) -> None:
        """End it from our side; unlike a cancelled call it is answered."""
        dropped = outcomes.failed(SERVER_UNAVAILABLE, reason, self.delivery, failure=CANCELLATION)
        self._end(dropped, reason)

    def deny(self, reason: str) -> None:
        """End it because its caller may not make it any more."""
        if self.ended_by is None:
            self.denial = reason
            denied = outcomes.failed(DENIED, reason, self.delivery, failure=CANCELLATION)
            self._end(denied, reason)

    @property
    def ending(self) -> asyncio.Event:
        """Set when it is ended from our side; for what is waited for before it is sent."""
        if self._ending is None:
            self._ending = asyncio.Event()
            if self.ended_by is not None:
                self._ending.set()
        return self._ending

    @property
    def is_paused(self) -> bool:
        """Whether its deadline stands still, because the client is asked something."""
        return self.asking > 0 or (self.substitute is not None and self.substitute.asking > 0)

    @property
    def delivery(self) -> Delivery:
        """How far it has got, for the outcome if it failed now."""
        if self.may_have_run:
            return Delivery.UNKNOWN
        if self.substitute is not None and self.substitute.delivery is Delivery.UNKNOWN:
            return Delivery.UNKNOWN
        return self.flight.delivery if self.flight is not None else Delivery.NOT_SENT

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self.ended_by is None:
            self.ended_by = outcome
            if self._ending is not None:
                self._ending.set()
            if self.flight is not None:
                self.flight.abandon(outcome, reason)
            if self.substitute is not None:
                self.substitute._end(outcome, reason)

    # -- upward: messages of the server before its answer

    def progress(self, params: dict[str, Raw]) -> None:
        """Relay progress under the client's own token."""
        if self.progress_token is not None and self.ended_by is None:
            params["progressToken"] = self.progress_token
            self._relay("notifications/progress", encode.dumps(params))

    def log(self, params: Raw) -> None:
        """Relay a log message, if the client wants it."""
        if self.ended_by is None and self.caller.wants_log(params, self.log_level):
            self._relay(LOG_MESSAGE, params)

    def _relay(self, method: str, params: Raw | bytes) -> None:
        self.spoke = True
        self.channel.offer(encode.notification(method, params))

    async def ask(self, method: str, params: Raw) -> Outcome:
        """Ask the client on the server's behalf. The deadline stands still meanwhile."""
        self.spoke = True
        self.asking += 1
        try:
            return await self.caller.ask(method, params, self.channel)
        finally:
            self.asking -= 1


def tool_call(caller: Caller, snapshot: Snapshot, name: str, params: dict[str, Raw]) -> Call:
    """A call of a tool whose caller has no other channel than its own."""
    token = envelope.progress_token(params)
    return Call(caller, snapshot, "tools/call", Address(TOOLS, name), params, caller, token)
