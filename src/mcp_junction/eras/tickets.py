"""Tickets: encrypted ``requestState`` and task ids that stateless clients bring back."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import RequestStateError
from mcp_junction.policy.principal import Principal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_NONCE: Final = 12
_TASK: Final = "task"


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
