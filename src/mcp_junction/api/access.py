"""Access: who may do what over REST, in one table. What is not in it is closed.

A route names its *right* (``opt=needs(Right.READ_SERVERS)``); one that names none is open to
nobody. What an agent may call is policy's, not this table's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from mcp_junction.errors import RequestError
from mcp_junction.policy.principal import Principal, Role

PRINCIPAL: Final = "mcp_junction.principal"
"""Where the Front leaves, in the scope of a request, whom it is from."""
_NEEDS: Final = "needs"


class Right(StrEnum):
    """Something that one may have the right to do."""

    READ_SERVERS = "read servers"
    CHANGE_SERVERS = "register, change, connect and remove servers"
    REFRESH_TOOLS = "have tools discovered and classified again"
    READ_TOOLS = "read the tools and the skills they have"
    CHANGE_SKILLS = "make, change and remove skills"
    CALL_TOOLS = "call tools"
    READ_EVENTS = "read the events"
    READ_DOCS = "read how the API works"


ANYONE: Final = frozenset({Right.READ_DOCS})
"""What needs no key: it says nothing of this installation."""
PUBLIC: Final = frozenset({"/api/v1/docs", "/api/v1/openapi.json"})
"""Where that is. Everywhere else a key is asked for before a route is looked for."""

RIGHTS: Final = {
    Role.ADMIN: frozenset(Right),
    Role.ORCHESTRATOR: frozenset(Right) - {Right.CHANGE_SERVERS, Right.CHANGE_SKILLS},
    Role.AGENT: frozenset({Right.READ_TOOLS, Right.CALL_TOOLS, Right.READ_DOCS}),
    Role.VIEWER: frozenset(
        {Right.READ_SERVERS, Right.READ_TOOLS, Right.READ_EVENTS, Right.READ_DOCS}
    ),
}
"""Who may do what. Changing and connecting servers is running programs: an administrator's."""


def needs(right: Right) -> dict[str, Any]:
    """The options of a route that is open to those with a right."""
    return {_NEEDS: right}


def check(principal: Principal | None, options: dict[str, Any]) -> None:
    """Raises RequestError unless this principal may use a route with these options."""
    right = options.get(_NEEDS)
    if right in ANYONE:
        return
    if principal is None:
        raise RequestError("UNAUTHENTICATED", "a key is needed: Authorization: Bearer …")
    if right is None or right not in RIGHTS.get(principal.role, frozenset()):
        what = f"may not {right}" if right is not None else "may not use this"
        raise RequestError("FORBIDDEN", f"the role {principal.role} {what}")
