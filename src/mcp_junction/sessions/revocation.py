"""Revocation: closes what agents have open that their grants no longer allow, and notifies clients.

It is told of agents whose grants changed, once that is in force. Running calls that no grant allows
any more are cancelled at their servers and answered as denied; so are parked ones. Subscriptions
and listens end that are for hidden resources, and so does what is open at endpoints that are not
there for the agent any more. Clients whose lists are not what they were hear of it a moment later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import KIND_OF
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import ALL, RESOURCES, ListKind
from mcp_junction.catalog.scope import Scope, Scopes
from mcp_junction.eras.parked import ParkedCall, ParkedCalls
from mcp_junction.governance.policy_sync import AgentChange
from mcp_junction.policy.decision import CallTarget, PolicyDecision
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import Grants, Principal, Role
from mcp_junction.sessions.clients import ClientRelay, Coalescer, ConnectedClients
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen

REVOKED: Final = "the right to this was revoked while it ran"


class OpenCalls(Protocol):
    """Where calls are under way, and what else clients have open there."""

    def running_calls(self) -> Iterable[Call]:
        """The calls that have not ended."""
        ...

    def end_listens(self, is_over: Callable[[Listen], bool]) -> None:
        """End the listens for which ``is_over`` is true."""
        ...

    def end_sessions(self, is_over: Callable[[Session], bool]) -> None:
        """End the sessions for which ``is_over`` is true."""
        ...

    def can_see(self, principal: Principal, endpoint: Endpoint) -> bool:
        """Whether an endpoint exists for a principal."""
        ...


class Revocation:
    """Applies changes of grants to what is open."""

    def __init__(
        self,
        policy: LivePolicy,
        scopes: Scopes,
        clients: ConnectedClients,
        relay: ClientRelay,
        parked: ParkedCalls,
        catalog: Callable[[], Catalog],
        calls: OpenCalls,
    ) -> None:
        self._policy = policy
        self._scopes = scopes
        self._clients = clients
        self._relay = relay
        self._parked = parked
        self._catalog = catalog
        self._calls = calls
        self._before: dict[str, Grants | None] = {}
        """What each agent was shown that has changed since its clients were told."""
        self._announcer = Coalescer(self._announce)

    def apply(self, changes: Sequence[AgentChange]) -> None:
        """Close what these agents may not have any more, and tell their clients of the rest."""
        agents = {change.agent_id for change in changes}
        now = time.time()
        for call in list(self._calls.running_calls()):
            if self._is_denied(call.substitute or call, agents, now):
                call.deny(REVOKED)
        self._parked.deny(lambda parked: self._is_parked_denied(parked, agents, now), REVOKED)
        self._end_hidden(agents)
        for change in changes:
            self._before.setdefault(change.agent_id, change.before)
        self._announcer.changed()

    def close(self) -> None:
        """Announce nothing more."""
        self._announcer.close()

    # -- calls

    def _is_denied(self, call: Call, agents: set[str], now: float) -> bool:
        """Whether no grant of the agent in whose name a call is made allows it any more."""
        agent_id = call.carried.agent_id or _agent_of(call.caller.principal)
        target = _target_of(call)
        if agent_id is None or agent_id not in agents or target is None:
            return False  # what is not resolved yet is decided by the grants as they are now
        return self._is_over(agent_id, target, call.decision, call.passed_by, now)

    def _is_parked_denied(self, parked: ParkedCall, agents: set[str], now: float) -> bool:
        record = parked.record
        if record is None or record.route is None:
            return False
        route, kind = record.route, KIND_OF.get(record.method)
        agent_id = parked.principal.acting_for or _agent_of(parked.principal)
        if agent_id is None or agent_id not in agents or kind is None:
            return False
        target = CallTarget(route.upstream.definition.id, route.pair.name, kind.capability)
        passed_by = parked.continuation.passed_by
        return self._is_over(agent_id, target, record.decision, passed_by, now)

    def _is_over(
        self,
        agent_id: str,
        target: CallTarget,
        decision: PolicyDecision | None,
        passed_by: str,
        now: float,
    ) -> bool:
        """Whether a call that was allowed is not any more.

        ``passed_by`` is the grant that a high-risk call was let pass by; it is all that is known of
        one that was resumed, when its token had been used.
        """
        grants = set() if decision is None else {grant.id for grant in decision.grants}
        grants |= {passed_by} - {""}
        if grants:
            live = self._policy.of(agent_id).grants
            if any(grant.id in grants and grant.is_live(now) for grant in live):
                return False
            if passed_by or target.risk.is_high:
                return True  # another grant would have wanted its own token
        policy = self._policy.of(agent_id)
        return policy.admits(target.kind, target.server_id, target.name, now) is None

    # -- what else is open

    def _end_hidden(self, agents: set[str]) -> None:
        """End what these agents have open at hidden endpoints, and of hidden resources."""

        def is_over(client: Session | Listen) -> bool:
            if _agent_of(client.principal) not in agents:
                return False
            return not self._calls.can_see(client.principal, client.endpoint)

        self._calls.end_sessions(is_over)
        ended = self._relay.unsubscribe_hidden(
            lambda client: _agent_of(client.principal) in agents,
            lambda client, pair: client.scope.admits(RESOURCES, pair),
        )
        self._calls.end_listens(lambda listen: listen in ended or is_over(listen))

    # -- changed lists

    def _announce(self) -> None:
        before, self._before = self._before, {}
        catalog = self._catalog()
        found: dict[tuple[str, Endpoint], set[str]] = {}

        def changed(client: Session | Listen) -> set[str]:
            """The notifications of the lists that are not what they were for a client."""
            agent_id = _agent_of(client.principal)
            if agent_id is None or agent_id not in before:
                return set()
            key = agent_id, client.endpoint
            if key not in found:
                old = Scope(client.endpoint, before[agent_id], client.scope.agent)
                found[key] = {k.changed for k in ALL if _differs(catalog, old, client.scope, k)}
            return found[key]

        sessions = list(self._clients.sessions)
        if any(
            one.log_level is not None and _agent_of(one.principal) in before for one in sessions
        ):
            self._relay.renew_log_levels()
        for session in sessions:
            for method in sorted(changed(session) & (session.listed or {}).keys()):
                session.notify(method)
        for listen in list(self._clients.listens):
            for method in sorted(changed(listen) & listen.announcements):
                listen.notify(method)


def _target_of(call: Call) -> CallTarget | None:
    """What a call is for; None where that is not known, or is Junction's own."""
    if call.facts is not None:
        return call.facts.target
    route, kind = call.route, call.address.kind
    if route is None or not kind.capability:
        return None
    return CallTarget(route.upstream.definition.id, route.pair.name, kind.capability)


def _differs(catalog: Catalog, old: Scope, new: Scope, kind: ListKind) -> bool:
    """Whether two Scopes admit different items of a kind."""
    if old.grants is new.grants:
        return False
    for key, offering in catalog.offerings.items():
        before, after = old.of(kind, key), new.of(kind, key)
        if before is None and after is None:
            continue
        for offer in offering.of(kind):
            was = before is not None and before(offer.name)
            if was is not (after is not None and after(offer.name)):
                return True
    return False


def _agent_of(principal: Principal) -> str | None:
    """The agent, or grantee, that a principal is; None for other roles."""
    return (principal.grantee or principal.id) if principal.role is Role.AGENT else None
