"""Rights of REST routes: each route names the right it needs; a route that names none is closed."""

from __future__ import annotations

from collections.abc import Mapping
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

__all__ = [
    "ANYONE",
    "BODY",
    "DENIAL_CODES",
    "OF",
    "PRINCIPAL",
    "PUBLIC",
    "RIGHTS",
    "Right",
    "check",
    "needs",
    "rights_needed",
]

PRINCIPAL: Final = "mcp_junction.principal"
"""The key of the ASGI scope under which RestFront puts the principal of a request."""
BODY: Final = "body"
"""The route option that names the model of the request body."""
OF: Final = "of"
"""The route option that names the resource which is missing, or there already, if not a server."""
_NEEDS: Final = "needs"
_OR_ONLY: Final = "or only"
DENIAL_CODES: Final = ("UNAUTHENTICATED", "FORBIDDEN")
"""The codes of errors that the audit counts as denials."""
PUBLIC: Final = frozenset({"/api/v1/docs", "/api/v1/openapi.json"})
"""The paths that need no key. Everywhere else a key is asked for before a route is looked for."""


def needs(
    right: Right,
    body: type[Any] | None = None,
    *,
    or_only: Right | None = None,
    of: str | None = None,
) -> dict[str, Any]:
    """Make the options of a route that needs a right; ``body`` is the model of its body.

    ``or_only``: who has this right alone may use it, too, and is answered less. ``of``: what its
    errors NotFound and AlreadyExists are about, as ``SKILL``; a server without it.
    """
    options = {_NEEDS: right, _OR_ONLY: or_only, BODY: body, OF: of}
    return {name: value for name, value in options.items() if value is not None}


def rights_needed(options: Mapping[str, Any]) -> list[Right]:
    """Return the rights of which a route with these options needs one."""
    return [options[name] for name in (_NEEDS, _OR_ONLY) if name in options]


def check(principal: Principal | None, options: Mapping[str, Any]) -> None:
    """Raise RequestError unless this principal may use a route with these options."""
    right = options.get(_NEEDS)
    if right in ANYONE:
        return
    if principal is None:
        raise RequestError("UNAUTHENTICATED", "a key is needed: Authorization: Bearer …")
    if right is Right.CALL and can_call(principal):  # for whom, the pipeline checks
        return
    if not any(has_right(principal, one) for one in rights_needed(options)):
        raise RequestError("FORBIDDEN", explain_refusal(principal, right))
