"""Refusals: describes refused requests for the audit.

Its query, headers and body are left out: they may hold secrets.
"""

from __future__ import annotations

from mcp_junction.audit.denials import ANONYMOUS, Denial
from mcp_junction.listener.http.host import Scope
from mcp_junction.policy.principal import Principal


def describe_denial(scope: Scope, reason: str, principal: Principal | None = None) -> Denial:
    """Describe a refused request of a principal, or of somebody without a valid key."""
    method, path = scope["method"], scope["path"]
    if principal is not None:
        return Denial("request", principal.id, method, path, reason, principal.role)
    client = scope.get("client") or ("unknown",)
    return Denial("request", ANONYMOUS, method, path, reason, address=str(client[0]))
