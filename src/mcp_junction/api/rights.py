"""Rights of REST routes: each route names the right it needs; a route that names none is closed."""

from __future__ import annotations

from typing import Any, Final

from mcp_junction.errors import RequestError
from mcp_junction.policy.principal import (
    ANYONE,
    RIGHTS,
    Principal,
    Right,
    can_call,
    explain_refusal,
    has_right,
)

__all__ = ["ANYONE", "DENIAL_CODES", "PRINCIPAL", "PUBLIC", "RIGHTS", "Right", "check", "needs"]

PRINCIPAL: Final = "mcp_junction.principal"
"""The key of the ASGI scope under which RestFront puts the principal of a request."""
_NEEDS: Final = "needs"
DENIAL_CODES: Final = ("UNAUTHENTICATED", "FORBIDDEN")
"""The codes of errors that the audit counts as denials."""
PUBLIC: Final = frozenset({"/api/v1/docs", "/api/v1/openapi.json"})
"""The paths that need no key. Everywhere else a key is asked for before a route is looked for."""


def needs(right: Right) -> dict[str, Any]:
    """Make the options of a route that needs a right."""
    return {_NEEDS: right}


def check(principal: Principal | None, options: dict[str, Any]) -> None:
    """Raise RequestError unless this principal may use a route with these options."""
    right = options.get(_NEEDS)
    if right in ANYONE:
        return
    if principal is None:
        raise RequestError("UNAUTHENTICATED", "a key is needed: Authorization: Bearer …")
    if right is Right.CALL and can_call(principal):  # for whom, the pipeline checks
        return
    if right is None or not has_right(principal, right):
        raise RequestError("FORBIDDEN", explain_refusal(principal, right))
