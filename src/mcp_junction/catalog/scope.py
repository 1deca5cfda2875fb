"""Scope: what one principal sees at one endpoint: the endpoint's selection and its own grants.

A Scope keys everything that is made for a caller: views, routes, what a search admits, hints. Two
callers who may use everything have the same Scope at the same endpoint.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final

import msgspec

from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint
from mcp_junction.catalog.items import ALL, ListKind
from mcp_junction.policy.principal import AccessPolicy, Admits, Grants, Principal, admit_all
from mcp_junction.protocol.names import Pair

log = logging.getLogger("mcp_junction.catalog")

_MAX_FOUND: Final = 10_000


class Scope(msgspec.Struct, frozen=True, eq=False):
    """What is visible to a caller. Compared by identity: other grants make another Scope."""

    endpoint: Endpoint
    grants: Grants | None = None
    """None admits all that the endpoint shows."""
    agent: str = ""
    """Whose names are remembered; empty for all who see everything, who share theirs."""
    saw_everything: bool = False
    """Whether the agent could see everything before, and may know those names."""
    _failures: set[str] = set()
    """Its agent, once the grants have raised an error: that is logged once."""

    def of(self, kind: ListKind, server: str) -> Admits | None:
        """What is visible of a server: says so of each name; None if nothing can be.

        Endpoints select tools and prompts by name, and everything else by server.
        """
        endpoint, grants = self.endpoint, self.grants
        if not endpoint.admits_server(server):
            return None
        granted = admit_all if grants is None else self._ask(grants, kind.capability, server)
        if granted is None or not kind.is_named or endpoint.admits_all(server):
            return granted
        return lambda name: granted(name) and endpoint.admits(Pair(server, name))

    def admits(self, kind: ListKind, pair: Pair) -> bool:
        """Whether a pair is visible."""
        admits = self.of(kind, pair.server)
        return admits is not None and admits(pair.name)

    def could_see(self, server: str) -> bool:
        """Whether something of a server may be admitted, whatever it offers now or later."""
        return any(self.of(kind, server) is not None for kind in ALL)

    def knows(self, server: str) -> bool:
        """Whether a server exists for the caller, also if nothing of it is visible."""
        if not self.endpoint.admits_server(server):
            return False
        try:
            return self.grants is None or self.grants.names(server)
        except Exception:  # noqa: BLE001 - it is logged
            self._report_failure()
            return False

    def _ask(self, grants: Grants, kind: str, server: str) -> Admits | None:
        """Ask what is granted of a server. Grants that raise an error grant nothing."""
        try:
            return grants.of(kind, server)
        except Exception:  # noqa: BLE001 - it is logged
            self._report_failure()
            return None

    def _report_failure(self) -> None:
        if not self._failures:
            self._failures.add(self.agent)
            log.exception("the grants of %s failed; it may not use what they are about", self.agent)


@lru_cache(4096)
def everything_at(endpoint: Endpoint) -> Scope:
    """The Scope of those who may use all that an endpoint shows."""
    return Scope(endpoint)


OPEN = everything_at(EVERYTHING)


class _NoGrants:
    """Grants nothing."""

    def of(self, kind: str, server: str) -> Admits | None:
        return None

    def names(self, server: str) -> bool:
        return False


_NO_GRANTS: Final = _NoGrants()


class Scopes:
    """Gives each caller its Scope, by the policy as it is now."""

    __slots__ = (
        "_failing", "_found", "_found_by", "_made", "_policy", "_saw_everything", "differ",
    )  # fmt: skip

    def __init__(self, policy: AccessPolicy | None = None, *, lists_differ: bool = False) -> None:
        """Without a policy, everybody may use everything."""
        self.differ = policy is not None or lists_differ
        """Whether callers may be shown different lists at one endpoint."""
        self._policy = policy
        self._made: dict[str, tuple[Grants, dict[Endpoint, Scope]]] = {}
        """The grants of each agent that sees less than everything, and its Scopes by endpoint."""
        self._saw_everything: set[str] = set()
        self._failing: set[str] = set()
        """The agents for whom the policy raises an error, which is logged once."""
        self._found: dict[tuple[int, Endpoint], tuple[Scope, Principal]] = {}
        """By the id of the principal, which it keeps alive; for the policy's current version."""
        self._found_by: int | None = None

    def of(self, principal: Principal, endpoint: Endpoint) -> Scope:
        """What a principal sees at an endpoint: nothing while the policy fails for it."""
        policy = self._policy
        if policy is None:
            return everything_at(endpoint)
        version = getattr(policy, "version", None)
        if version != self._found_by:
            self._found.clear()
            self._found_by = version
        found = self._found.get((id(principal), endpoint))
        if found is not None:
            return found[0]
        scope = self._find(policy, principal, endpoint)
        if version is not None and not self._failing:
            if len(self._found) >= _MAX_FOUND:
                self._found.clear()
            self._found[id(principal), endpoint] = scope, principal
        return scope

    def _find(self, policy: AccessPolicy, principal: Principal, endpoint: Endpoint) -> Scope:
        """Ask the policy; the same grants make the same Scope as before."""
        agent = _agent_of(principal)
        grants = self._ask_policy(policy, principal, agent)
        if grants is None:
            self._saw_everything.add(agent)
            return everything_at(endpoint)
        made = self._made.get(agent)
        if made is None or made[0] is not grants:
            made = self._made[agent] = grants, {}
        new = Scope(endpoint, grants, agent, agent in self._saw_everything)
        return made[1].setdefault(endpoint, new)

    def forget(self, principal: Principal) -> str:
        """Forget a principal that has left; return whose names need not be remembered."""
        agent = _agent_of(principal)
        self._found.clear()
        self._made.pop(agent, None)
        self._failing.discard(agent)
        self._saw_everything.discard(agent)
        return agent

    def _ask_policy(self, policy: AccessPolicy, principal: Principal, agent: str) -> Grants | None:
        """Ask what a principal may use. A policy that raises grants nothing."""
        try:
            grants = policy.grants(principal)
        except Exception:
            if agent not in self._failing:
                self._failing.add(agent)
                log.exception("the access policy failed for %s, who may use nothing now", agent)
            return _NO_GRANTS
        self._failing.discard(agent)
        return grants


def _agent_of(principal: Principal) -> str:
    return f"{principal.role}:{principal.grantee or principal.id}"


OPEN_SCOPES = Scopes()
"""The Scopes where everybody may use everything."""
