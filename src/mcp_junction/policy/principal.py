"""Principals and their roles: who makes a call, and the one table of what each role may do.

REST, ``/mcp`` and the commands read the same table. How a principal was identified is not known
here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Role(StrEnum):
    OWNER = "owner"
    ADMIN = "admin"
    ORCHESTRATOR = "orchestrator"
    AGENT = "agent"
    VIEWER = "viewer"


class Principal(msgspec.Struct, frozen=True):
    """Someone a call is made for."""

    id: str
    role: Role
    key: str = ""
    """The id of the key that was shown: what was opened with one key ends with it."""

    def is_same(self, other: Principal) -> bool:
        """Whether both are one principal, whichever keys were shown."""
        return self is other or (self.id == other.id and self.role is other.role)


LOCAL_OWNER: Final = Principal("local-owner", Role.OWNER)
"""The person who started the process: everything it can reach is theirs already."""


class Right(StrEnum):
    """Something that a principal may have the right to do."""

    READ_TOOLS = "list and search the tools, and read the skills they have"
    CALL = "call tools, get prompts, read resources or have them completed"
    READ_SERVERS = "read servers"
    CHANGE_SERVERS = "register, change, connect and remove servers"
    APPROVE_TOOLS = "approve and block tools"
    REFRESH_TOOLS = "have tools discovered and classified again"
    CHANGE_SKILLS = "make, change and remove skills"
    CHANGE_KEYS = "make, list and revoke keys"
    READ_EVENTS = "read the events"
    READ_METRICS = "read the metrics"
    READ_DOCS = "read how the API works"


ANYONE: Final = frozenset({Right.READ_DOCS})
"""What needs no key, because it says nothing about this installation."""

_READ: Final = frozenset(
    {
        Right.READ_TOOLS,
        Right.READ_SERVERS,
        Right.READ_EVENTS,
        Right.READ_METRICS,
        Right.READ_DOCS,
    }
)

RIGHTS: Final = {
    Role.OWNER: frozenset({Right.READ_TOOLS, Right.CALL, Right.CHANGE_KEYS, Right.READ_DOCS}),
    Role.ADMIN: frozenset(Right),
    Role.ORCHESTRATOR: _READ | {Right.REFRESH_TOOLS},
    Role.AGENT: frozenset({Right.READ_TOOLS, Right.CALL, Right.READ_DOCS}),
    Role.VIEWER: _READ,
}
"""The table. The owner changes keys by the commands of this machine, and everything else over REST
with an administrator's key. An orchestrator calls only on behalf of an agent that it names, which a
request cannot do yet: so it cannot call."""

KEY_ROLES: Final = tuple(role for role in Role if role is not Role.OWNER)
"""The roles that a key can have."""

CALLING_ROLES: Final = tuple(role for role, rights in RIGHTS.items() if Right.CALL in rights)
"""The roles that have the right to call. A tuple, because to hash a role runs Python code."""

_ON_BEHALF: Final = (
    "the role orchestrator calls only on behalf of an agent, which a request cannot name yet;"
    " use an agent's key"
)


def has_right(principal: Principal, right: Right) -> bool:
    """Whether a principal has a right."""
    return right in RIGHTS[principal.role]


def explain_refusal(principal: Principal, right: Right | None) -> str:
    """Say why a principal is refused; ``right`` is None for what nobody may use."""
    if right is None:
        return f"the role {principal.role} may not use this"
    if right is Right.CALL and principal.role is Role.ORCHESTRATOR:
        return _ON_BEHALF
    return f"the role {principal.role} may not {right}; use a key of a role that may"
