"""ActingAgent: whose grants decide about a call, by the principal and the agent that it names.

A call may name an agent (``agent_id``, ``X-Agent-Id``, ``junction/agent-id``). What the role of the
principal allows then is settled here; whether the agent's grants admit the call is ``decision.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mcp_junction.policy.principal import Principal, Right, Role, explain_refusal

MAX_AGENT_ID: Final = 255
"""Characters of the longest agent id."""


class ActingAgent(NamedTuple):
    """Under whose name a call is made."""

    id: str
    has_all: bool
    """Whether it may call everything, without a grant or a token: the owner or an administrator
    that calls as itself."""
    is_named: bool = False
    """Whether an administrator or an orchestrator named it."""


class ActingRefusal(NamedTuple):
    """Why a principal cannot make calls, or not in the name of that agent."""

    rule: str
    reason: str


FOREIGN_AGENT: Final = "agent_id"
"""The rule that refuses an agent id which is not the caller's own."""
ROLE: Final = "role"
"""The rule that refuses a role."""

# For the call path, see protocol/versions.py.
_ADMIN: Final = Role.ADMIN
_ORCHESTRATOR: Final = Role.ORCHESTRATOR
_AGENT: Final = Role.AGENT
_VIEWER: Final = Role.VIEWER

_VIEWER_CALLS: Final = ActingRefusal(ROLE, explain_refusal(Principal("", Role.VIEWER), Right.CALL))
_NOBODY_NAMED: Final = ActingRefusal(
    ROLE, "the role orchestrator calls only on behalf of an agent; name one as agent_id"
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
        return _FOR_ITSELF if named == principal.id else ActingAgent(named, False, True)
    if named is None or named == principal.id:
        return ActingAgent(principal.id, role is not _AGENT)
    return ActingAgent(named, False, True) if role is _ADMIN else _FOREIGN
