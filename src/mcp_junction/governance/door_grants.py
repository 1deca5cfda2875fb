"""DoorGrants: puts in force what the config's door gives to agents by their access tokens.

An agent that shows a token has what its token gives beside what it was granted in the store. Two
tokens of one agent that give different things are two *grantees*: neither has what only the other
gives. A pattern names a server that may not be there yet; grants are made anew when servers change.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from hashlib import sha256
from typing import Final

from mcp_junction.config.door import DoorConfig
from mcp_junction.errors import Problem
from mcp_junction.governance.policy_sync import PolicySync
from mcp_junction.policy.decision import CallTarget, covers
from mcp_junction.policy.grants import Grant, GrantSource, parse_target
from mcp_junction.policy.tokens import NONE
from mcp_junction.upstream.events import ServerChange, ServerChanged

_CHANGES: Final = (
    ServerChange.ADDED,
    ServerChange.RENAMED,
    ServerChange.REPLACED,
    ServerChange.REMOVED,
)


class DoorGrants:
    """The grants of all conditions, and of the agents whose tokens fulfil some."""

    def __init__(self, door: DoorConfig, sync: PolicySync, server_ids: Mapping[str, str]) -> None:
        self._door = door
        self._sync = sync
        self._server_ids = server_ids
        self._known: dict[str, str] = {}
        self._grantees: dict[str, tuple[str, tuple[str, ...]]] = {}

    def admit(self, agent_id: str, conditions: tuple[str, ...]) -> str:
        """Put in force what these conditions give an agent; return its grantee."""
        mark = sha256("\n".join(conditions).encode()).hexdigest()[:12]
        grantee = f"{agent_id}#{mark}"
        if grantee not in self._grantees:
            self._grantees[grantee] = agent_id, conditions
            self._sync.put_extra(grantee, agent_id, self._make(agent_id, conditions))
        return grantee

    def forget_others(self, in_use: Container[str]) -> None:
        """Forget the grantees that neither have a token nor anything open."""
        for grantee in [one for one in self._grantees if one not in in_use]:
            del self._grantees[grantee]
            self._sync.remove_extra(grantee)

    def follow(self, event: ServerChanged) -> None:
        """Make the grants anew when names lead to other servers."""
        if event.change not in _CHANGES or self._known == dict(self._server_ids):
            return
        self._known = dict(self._server_ids)
        for grantee, (agent_id, conditions) in self._grantees.items():
            self._sync.put_extra(grantee, agent_id, self._make(agent_id, conditions))

    def of(self, agent_id: str) -> list[Grant]:
        """List what the tokens give that an agent has shown here."""
        found = {
            grant.id: grant
            for agent, conditions in self._grantees.values()
            if agent == agent_id
            for grant in self._make(agent, conditions)
        }
        return list(found.values())

    @property
    def all(self) -> list[Grant]:
        """List what the door gives to any agent that fulfils a condition."""
        return self._make(f"{self._door.alias}:*", tuple(self._door.grants))

    def find_conditions(self, agent_id: str, target: CallTarget) -> list[str]:
        """Say which tokens would let an agent of the door call something."""
        if not agent_id.startswith(f"{self._door.alias}:"):
            return []
        return [
            f"its access token has {condition}"
            for condition in self._door.grants
            if any(covers(grant, target) for grant in self._make(agent_id, (condition,)))
        ]

    def _make(self, agent_id: str, conditions: tuple[str, ...]) -> list[Grant]:
        """Make the grants of conditions, as far as they name servers that there are."""
        servers = {ref: one for name, one in self._server_ids.items() for ref in (one, name)}
        found = []
        for condition in conditions:
            for pattern in self._door.grants[condition]:
                target = parse_target(pattern, servers)
                if not isinstance(target, Problem):
                    mark = sha256(f"{condition}\n{pattern}".encode()).hexdigest()[:12]
                    grant = Grant(
                        f"door-{mark}",
                        agent_id,
                        *target,
                        token_mode=NONE,  # the access token is one, and short-lived
                        granted_by="door",
                        note=f"the door gives it to access tokens with {condition}",
                        source=GrantSource.DOOR,
                    )
                    found.append(grant)
        return found
