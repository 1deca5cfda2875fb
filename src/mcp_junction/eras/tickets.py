"""Tickets: encrypted ``requestState`` and task ids that stateless clients bring back.

ResolveTask finds the server that made a task by the task's sealed id. That holds the server, whose
the task is and which tool, prompt or resource made it, so that no table is needed and no one can
use another's. How a call goes on whose client brings a ``requestState`` is in ``resume.py``.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Handler, answer_with
from mcp_junction.calls.stages.resolve import refuse_unknown
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS, ListKind, Route, timeout_for
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import RequestStateError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Pair
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.upstream import Upstream

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_NONCE: Final = 12
_TASK: Final = "task"
_KINDS: Final = {kind.name: kind for kind in (TOOLS, PROMPTS, RESOURCES)}


def server_ref(definition: ServerDefinition) -> str:
    """Name a server in what is sealed: by its id, which no other server that takes its name has."""
    return definition.id or definition.key


class TicketOwner(msgspec.Struct, frozen=True, array_like=True):
    """Who may use a ticket, and for what."""

    principal: str
    role: str
    endpoint: str
    server: str
    """See ``server_ref``."""
    name: str
    method: str
    digest: str = ""
    """Of the arguments, where a call that waits must be the same when it comes back."""
    agent: str = ""
    """The agent that the principal named, if it did."""


class Continuation(msgspec.Struct, frozen=True, array_like=True):
    """What a resumed call takes over from the request before it."""

    left: float | None = None
    """The seconds that the call has left; None if it has no deadline."""
    spoke: bool = False
    claim: str | None = None
    intent: str | None = None
    fallback: tuple[str, str] | None = None
    """The id of the server and the tool that asked, if it was called in place of another."""
    passed_by: str = ""
    """The id of the grant that let it pass with a token."""


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What is sealed: the id of a parked call, or the state of a stateless server itself."""

    owner: TicketOwner
    expires: float = 0.0
    id: str = ""
    round: int = 0
    inner: str | None = None
    """The state that a stateless server wants back, or the id of its task."""
    continuation: Continuation = Continuation()
    purpose: str = ""
    """Of a call that was not made yet: which page of ours its client was sent to."""
    has_state: bool = True
    """Whether a stateless server that has asked wants a state back."""


class SealedTask(NamedTuple):
    """What the sealed id of a task says: its id at its server, and what made it there."""

    id: str
    server: str
    """See ``server_ref``."""
    kind: str = ""
    """``tools``, ``prompts`` or ``resources``; empty in an id from before this was sealed."""
    name: str = ""


class Seal:
    """Seals tickets with one key, and opens those of older ones, too."""

    def __init__(
        self,
        keys: Callable[[], Sequence[bytes]] | None = None,
        replica: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``keys`` returns the key that seals, and others that open; the same list until they
        change. Without it, there is one key, of this process."""
        own = [secrets.token_bytes(KEY_BYTES)]
        self._keys = keys or (lambda: own)
        self._replica = replica or secrets.token_hex(3)
        self._now = now
        self._made: tuple[Sequence[bytes], list[AESGCM]] | None = None

    def close(self, ticket: Ticket) -> str:
        """Seal a ticket, as text."""
        nonce = secrets.token_bytes(_NONCE)
        sealed = self._ciphers[0].encrypt(
            nonce, msgspec.json.encode(ticket), self._replica.encode()
        )
        return f"{self._replica}.{base64.urlsafe_b64encode(nonce + sealed).decode('ascii')}"

    def until(self, seconds: float) -> float:
        """The moment when a ticket that is good for so long expires."""
        return self._now() + seconds

    def open(self, state: str, owner: TicketOwner) -> Ticket:
        """Open a sealed ticket. Raises RequestStateError when it is not good for ``owner``."""
        ticket = self.read(state)
        if ticket.owner != owner:
            raise RequestStateError("this requestState was given for something else")
        if ticket.expires and ticket.expires < self._now():
            raise RequestStateError("this requestState has expired; make the call again without it")
        return ticket

    def seal_task(self, task: SealedTask, principal: Principal, endpoint: str) -> str:
        """Seal the id of a server's task for the client."""
        return self.close(Ticket(_owner_of_task(task, principal, endpoint), inner=task.id))

    def open_task(self, sealed: str, principal: Principal, endpoint: str) -> SealedTask:
        """Open the sealed id of a task. Raises RequestStateError."""
        ticket = self.read(sealed)
        owner = ticket.owner
        task = SealedTask(ticket.inner or "", owner.server, owner.digest, owner.name)
        if owner != _owner_of_task(task, principal, endpoint) or ticket.inner is None:
            raise RequestStateError("this is not the id of a task of this client")
        return task

    def read(self, state: str) -> Ticket:
        """Open a sealed ticket of any owner. Raises RequestStateError."""
        from cryptography.exceptions import InvalidTag

        replica, _, body = state.partition(".")
        try:
            data = base64.urlsafe_b64decode(body.encode("ascii"))
            if base64.urlsafe_b64encode(data).decode("ascii") != body:
                raise ValueError("written in another way than ours")
            for cipher in self._ciphers:
                try:
                    plain = cipher.decrypt(data[:_NONCE], data[_NONCE:], replica.encode())
                except InvalidTag:
                    continue
                return msgspec.json.decode(plain, type=Ticket)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            pass
        raise RequestStateError("this requestState is not one of ours")

    @property
    def _ciphers(self) -> list[AESGCM]:
        keys = self._keys()
        if self._made is None or self._made[0] is not keys:
            # Imported where it is used: most clients are never asked anything.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._made = keys, [AESGCM(key) for key in keys]
        return self._made[1]


def _owner_of_task(task: SealedTask, principal: Principal, endpoint: str) -> TicketOwner:
    who, role, agent = principal.id, principal.role.value, principal.acting_for
    return TicketOwner(who, role, endpoint, task.server, task.name, _TASK, task.kind, agent)


class ResolveTask:
    """The stage that takes the place of ``resolve`` for the methods of tasks."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if call.ended_by is not None:
            return answer_with(call.ended_by)
        call.route = self._route(call)
        return following(call) if call.route is not None else refuse_unknown(call)

    def _route(self, call: Call) -> Route | None:
        caller = call.caller
        try:
            task = self._seal.open_task(call.name, call.user, caller.endpoint.name)
        except RequestStateError:
            return None
        catalog = call.snapshot.catalog
        upstream = _find_server(catalog, task.server)
        if upstream is None or not catalog.has_server(caller.scope, upstream.key):
            return None
        timeout = timeout_for(upstream, catalog.timeout)
        kind = _KINDS.get(task.kind)
        if kind is not None:
            call.origin = _find_origin(call, kind, task, upstream, timeout), kind
        raw = Raw(encode.dumps(task.id))
        return Route(upstream, Pair(upstream.key, task.id), f"{upstream.key} task", raw, timeout)


def _find_server(catalog: Catalog, ref: str) -> Upstream | None:
    """Find the server that a sealed id names."""
    upstreams = (offering.upstream for offering in catalog.offerings.values())
    return next((one for one in upstreams if server_ref(one.definition) == ref), None)


def _find_origin(
    call: Call, kind: ListKind, task: SealedTask, upstream: Upstream, timeout: float
) -> Route:
    """Find the route of what made a task; one without an item when it is not listed any more."""
    caller, catalog, pair = call.caller, call.snapshot.catalog, Pair(upstream.key, task.name)
    if kind is RESOURCES:
        found = catalog.resources(caller.scope).find(task.name)
    else:
        view = catalog.view(caller.spelling, kind, caller.scope)
        name = view.name_of(pair)
        found = view.find(name) if name is not None else None
    if found is not None and found.pair == pair:
        return found
    raw = Raw(encode.dumps(task.name))
    return Route(upstream, pair, f"{upstream.key} {task.name}", raw, timeout)
