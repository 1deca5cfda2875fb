"""Approval: what a person's consent to one call is bound to, and what may be done with it.

The binding covers everything that decides what the call does: the acting agent, the server and how
it is connected to, the tool's definition, the grant with its version, and the arguments. Another
value of any of them is another call. Storing and spending approvals is ``store/grants.py``.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Final

import msgspec

from mcp_junction.policy.grants import Grant
from mcp_junction.policy.principal import Principal, Role

MAX_NOTE: Final = 2_000


class ApprovalState(StrEnum):
    """What became of a request for approval; one that has expired is so by its time."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    USED = "used"
    EXPIRED = "expired"


class ApprovedCall(msgspec.Struct, frozen=True):
    """Everything of a call that an approval is bound to, but for the grant."""

    agent_id: str
    server_id: str
    connection: str
    """A hash of how the server is connected to."""
    tool_name: str
    definition: str
    """The hash of the tool's definition."""
    arguments: str
    """The canonical hash of the arguments."""

    def bind(self, grant: Grant) -> str:
        """Return the one text that stands for this call by a grant."""
        parts = (*msgspec.structs.astuple(self), grant.id, grant.version)
        return sha256(msgspec.json.encode(parts)).hexdigest()


def explain_approver_refusal(principal: Principal, agent_id: str, asked_by: str) -> str | None:
    """Say why a principal may not decide about a call; None when it may.

    Nobody approves its own call, but for an administrator. Whether its role may decide at all is
    checked before.
    """
    if principal.role in (Role.ADMIN, Role.OWNER):
        return None
    if principal.id in (agent_id, asked_by):
        return "nobody decides about a call of its own; ask an administrator"
    return None
