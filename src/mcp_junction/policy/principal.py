"""Principals and their roles: who makes a call, for whom, and the one table of what roles may do.

REST, ``/mcp`` and the commands use the same table. An AccessPolicy says what else a principal may
use; the one of the service is ``live_policy.py``. How a principal is identified: ``identity/``.
Whether the grants of an acting agent admit a call: ``decision.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec


class Role(StrEnum):
    """What a principal is, which decides its rights."""

    OWNER = "owner"
    ADMIN = "admin"
    ORCHESTRATOR = "orchestrator"
    AGENT = "agent"
    VIEWER = "viewer"


class TokenClaims(msgspec.Struct, frozen=True):
    """What a principal's access token claims of it, for the conditions of grants.

    Equal for all tokens that claim the same: what differs from token to token is left out.
    """

    text: bytes = b"{}"
    """JSON, its names sorted."""

    @classmethod
    def read(cls, claims: Mapping[str, Any]) -> TokenClaims:
        """Keep what a token claims of its subject."""
        kept = {name: value for name, value in claims.items() if name not in _OF_ONE_TOKEN}
        return cls(msgspec.json.encode(kept, order="sorted"))

    @property
    def values(self) -> Mapping[str, Any]:
        """The claims by their names."""
        return _decode_claims(self.text)

    def __repr__(self) -> str:
        return "TokenClaims(…)"  # they tell of a person


_OF_ONE_TOKEN: Final = frozenset(
    ("exp", "iat", "nbf", "jti", "auth_time", "uti", "rh", "aio", "xms_ftd")
)
"""Claims that are another in each token of one subject, of common issuers too."""
NO_CLAIMS: Final = TokenClaims()


@lru_cache(1_000)
def _decode_claims(text: bytes) -> Mapping[str, Any]:
    found: Mapping[str, Any] = msgspec.json.decode(text)
    return found


class Principal(msgspec.Struct, frozen=True):
    """Who makes a call, or for whom it is made."""

    id: str
    role: Role
    key: str = ""
    """The id of the key that it used: sessions opened with a key end when that is revoked."""
    acting_for: str = ""
    """The agent that it named, where calls for different agents are told apart."""
    grantee: str = ""
    """Under which the policy has its grants, where its access token gives more than its agent has;
    see ``LivePolicy.put_extra``."""
    claims: TokenClaims = NO_CLAIMS
    """Of its access token, if it came with one."""

    def is_same(self, other: Principal) -> bool:
        """Whether both are one principal, calling for one agent, whatever keys they used."""
        return self is other or (
            self.id == other.id and self.role is other.role and self.acting_for == other.acting_for
        )


LOCAL_OWNER: Final = Principal("local-owner", Role.OWNER)
"""The person who started the process, who can reach everything that it can."""


class Right(StrEnum):
    """Something that a principal may have the right to do."""

    READ_TOOLS = "list and search the tools, and read the skills they have"
    CALL = "call tools, get prompts, read resources or have them completed"
    CALL_FOR_AGENT = "call on behalf of an agent that it names, under that agent's grants"
    READ_SERVERS = "read servers"
    SIGN_IN_ITSELF = "sign in to servers for itself, where each agent has its own credential"
    CHANGE_SERVERS = "register, change, connect and remove servers"
    APPROVE_TOOLS = "approve and block tools"
    REFRESH_TOOLS = "have tools discovered and classified again"
    CHANGE_SKILLS = "make, change and remove skills"
    CHANGE_KEYS = "make, list and revoke keys"
    READ_KEYS = "list keys"
    READ_SETTINGS = "read the settings"
    CHANGE_POLICY = "change grants, agents and tool settings, decide approvals and reset breakers"
    READ_POLICY = "read grants, agents, tool settings, approvals and breakers"
    READ_OWN_POLICY = "read its own grants, and ask about its own calls"
    READ_AUDIT = "read the audit and the escalations"
    READ_OWN_CALLS = "read the audit, metrics and events of its own calls"
    READ_EVENTS = "read the events"
    READ_METRICS = "read the metrics"
    READ_DOCS = "read how the API works"


ANYONE: Final = frozenset({Right.READ_DOCS})
"""Rights that need no key, because they show nothing of this installation."""

_READ: Final = frozenset(
    {
        Right.READ_TOOLS,
        Right.READ_SERVERS,
        Right.READ_EVENTS,
        Right.READ_METRICS,
        Right.READ_DOCS,
        Right.READ_POLICY,
        Right.READ_OWN_POLICY,
        Right.READ_AUDIT,
    }
)

RIGHTS: Final = {
    Role.OWNER: frozenset(
        {Right.READ_TOOLS, Right.CALL, Right.CHANGE_KEYS, Right.CHANGE_POLICY, Right.READ_DOCS}
    ),
    Role.ADMIN: frozenset(Right),
    Role.ORCHESTRATOR: _READ
    | {
        Right.CALL_FOR_AGENT,
        Right.REFRESH_TOOLS,
        Right.CHANGE_POLICY,
        Right.READ_KEYS,
        Right.READ_SETTINGS,
    },
    Role.AGENT: frozenset(
        {
            Right.READ_TOOLS,
            Right.CALL,
            Right.SIGN_IN_ITSELF,
            Right.READ_OWN_CALLS,
            Right.READ_OWN_POLICY,
            Right.READ_DOCS,
        }
    ),
    Role.VIEWER: _READ,
}
"""The rights of each role. The owner changes keys, and grants for them, by commands on this
machine, and the rest over REST with an admin's key. An orchestrator may call only on behalf of an
agent that it names. Whose grants decide about a call: ``resolve_acting_agent``."""

KEY_ROLES: Final = tuple(role for role in Role if role is not Role.OWNER)
"""The roles that a key can have."""

_CALLS: Final = frozenset({Right.CALL, Right.CALL_FOR_AGENT})
CALLING_ROLES: Final = tuple(role for role, rights in RIGHTS.items() if _CALLS & rights)
"""The roles that may call, as themselves or for an agent. A tuple, because to hash a role runs
Python code."""


def can_call(principal: Principal) -> bool:
    """Whether a principal may call, as itself or for an agent that it names."""
    return principal.role in CALLING_ROLES


def has_right(principal: Principal, right: Right) -> bool:
    """Whether a principal has a right."""
    return right in RIGHTS[principal.role]


def can_change_policy_of(principal: Principal, agent_id: str) -> bool:
    """Whether a principal may change an agent's grants; an orchestrator never its own."""
    is_itself = principal.role is Role.ORCHESTRATOR and principal.id == agent_id
    return has_right(principal, Right.CHANGE_POLICY) and not is_itself


def can_read_policy_of(principal: Principal, agent_id: str) -> bool:
    """Whether a principal may read an agent's grants and ask about its calls."""
    is_own = principal.role is Role.AGENT and principal.id == agent_id
    return is_own or has_right(principal, Right.READ_POLICY)


def explain_refusal(principal: Principal, right: Right | None) -> str:
    """Explain why a principal is refused; ``right`` is None where nobody has one."""
    if right is None:
        return f"the role {principal.role} may not use this"
    return f"the role {principal.role} may not {right}; use a key of a role that may"


# -- under whose name

MAX_AGENT_ID: Final = 255
"""Characters of the longest agent id."""


class ActingAgent(NamedTuple):
    """Under whose name a call is made."""

    id: str
    has_all: bool
    """Whether it may call everything, without a grant or a token: the owner or an administrator
    that calls as itself."""


class ActingRefusal(NamedTuple):
    """Why a principal cannot make calls, or not in the name of that agent."""

    rule: str
    reason: str


FOREIGN_AGENT: Final = "agent_id"
"""The rule that refuses an agent id which is not the caller's own."""
ROLE_RULE: Final = "role"
"""The rule that refuses a role."""

# For the call path, see protocol/versions.py.
_ADMIN: Final = Role.ADMIN
_ORCHESTRATOR: Final = Role.ORCHESTRATOR
_AGENT: Final = Role.AGENT
_VIEWER: Final = Role.VIEWER

_VIEWER_CALLS: Final = ActingRefusal(
    ROLE_RULE, explain_refusal(Principal("", Role.VIEWER), Right.CALL)
)
_NOBODY_NAMED: Final = ActingRefusal(
    ROLE_RULE, "the role orchestrator calls only on behalf of an agent; name one as agent_id"
)
_FOR_ITSELF: Final = ActingRefusal(
    FOREIGN_AGENT, "an orchestrator does not call for itself; name the agent that it calls for"
)
_FOREIGN: Final = ActingRefusal(
    FOREIGN_AGENT, "agent_id names another agent than the key's own; leave it out, or use its key"
)
_BAD_NAME: Final = ActingRefusal(
    FOREIGN_AGENT, f"agent_id must have 1 to {MAX_AGENT_ID} characters; correct it, or leave it out"
)


def resolve_acting_agent(
    principal: Principal, named: str | None = None
) -> ActingAgent | ActingRefusal:
    """Find whose grants decide about a call of ``principal`` that names an agent, or nobody."""
    role = principal.role
    if role is _VIEWER:
        return _VIEWER_CALLS
    if named is not None and not 1 <= len(named) <= MAX_AGENT_ID:
        return _BAD_NAME
    if role is _ORCHESTRATOR:
        if named is None:
            return _NOBODY_NAMED
        return _FOR_ITSELF if named == principal.id else ActingAgent(named, False)
    if named is None or named == principal.id:
        return ActingAgent(principal.id, role is not _AGENT)
    return ActingAgent(named, False) if role is _ADMIN else _FOREIGN


# -- what a principal may use

Admits = Callable[[str], bool]
"""Says whether the name or URI of one server's item is admitted."""


def admit_all(_: str) -> bool:
    """Say that any name is admitted. The one function that does: what is whole is known by it."""
    return True


class Grants(Protocol):
    """What one principal may use. A change makes another object, so that this one never changes.

    ``kind`` is ``tools``, ``prompts`` or ``resources``, and names are those that a server itself
    uses.
    """

    def of(self, kind: str, server: str) -> Admits | None:
        """What it may use of a server: says of each name whether it may; None if nothing."""
        ...

    def names(self, server: str) -> bool:
        """Whether something is granted on this very server, rather than on all servers.

        Its principal then knows that there is such a server, whether anything matches or not.
        """
        ...


class AccessPolicy(Protocol):
    """Who may use what, as it is decided now. Where there is none, everybody may use everything.

    One that has a ``version``, another number after each change, is asked again only after that.
    """

    def grants(self, principal: Principal) -> Grants | None:
        """What a principal may use; None is everything. The same object until that changes."""
        ...
