"""Refusals: what the audit is told of a request that is not let in.

Never its query, its headers or its body: they may hold what nobody should read.
"""

from __future__ import annotations

from mcp_junction.audit.denials import ANONYMOUS, Denied
from mcp_junction.listener.http.doors import Scope
from mcp_junction.policy.principal import Principal


def refused(scope: Scope, reason: str, principal: Principal | None = None) -> Denied:
    """Describe a request that is refused to a principal, or to somebody who showed no good key."""
    method, path = scope["method"], scope["path"]
    if principal is not None:
        return Denied("request", principal.id, method, path, reason, principal.role)
    client = scope.get("client") or ("unknown",)
    return Denied("request", ANONYMOUS, method, path, reason, address=str(client[0]))
