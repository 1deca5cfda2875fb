"""PolicyAdministration: changes grants, agents and tokens.

Each change is an act in the audit and a ``policy.changed`` event, and is in force in this process
before it is answered. Whether a role may change policies at all is checked before (``api/rights``);
here it is checked that nobody gives itself rights.

``migrate_agents`` gives agents from before there were grants what they could do: once in the life
of a store.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from mcp_junction.audit.log import AuditLog
from mcp_junction.config.settings import Settings
from mcp_junction.errors import (
    ConditionError,
    InvalidChange,
    NotFound,
    NotPermitted,
    Problem,
    ProblemCode,
)
from mcp_junction.governance.condition_compiler import ConditionCompiler
from mcp_junction.governance.policy_sync import PolicySync
from mcp_junction.policy.grants import (
    ANY,
    Grant,
    GrantSource,
    bind,
    check_agent_id,
    check_grant,
    migrated_grant,
)
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role, can_change_policy_of
from mcp_junction.policy.tokens import APPROVAL, NONE, Token, hash_secret, write_token
from mcp_junction.store.grants import AgentRecord
from mcp_junction.store.policy import GivenGrant
from mcp_junction.store.store import Store
from mcp_junction.telemetry.bus import Bus

log = logging.getLogger("mcp_junction.governance")

CHANGED: Final = "policy.changed"
"""The type of the event that tells those who may read policies that one has changed."""


class IssuedGrant(NamedTuple):
    """A grant, and its new token with the text that is shown once."""

    grant: Grant
    token: Token | None = None
    token_text: str | None = None


class BoundAgent(NamedTuple):
    """An agent with the grants that its declared tools led to."""

    agent: AgentRecord
    grants: list[IssuedGrant]


class _NewTokens:
    """Makes tokens, and keeps the texts that are shown once."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._texts: dict[str, str] = {}

    def make(self, grant: Grant) -> Token | None:
        """Make the token of a grant; None where its mode needs none."""
        if grant.token_mode in (NONE, APPROVAL):
            return None
        token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._texts[token_id] = write_token(token_id, secret)
        until = self._now + grant.token_ttl
        expires_at = until if grant.expires_at is None else min(until, grant.expires_at)
        return Token(token_id, grant.id, hash_secret(secret), self._now, expires_at)

    def issued(self, given: GivenGrant) -> IssuedGrant:
        """Add the text of its token to a grant that was given."""
        text = None if given.token is None else self._texts[given.token.id]
        return IssuedGrant(given.grant, given.token, text)


class PolicyAdministration:
    """Changes who may call what."""

    def __init__(
        self,
        store: Store,
        sync: PolicySync | None,
        audit: AuditLog,
        bus: Bus,
        token_ttl: float,
        servers: Callable[[], Mapping[str, str]],
        forget: Callable[[str, Sequence[str]], None] | None = None,
    ) -> None:
        """``servers`` leads from names and ids of servers to ids.

        ``forget`` is told which agent is gone, and which grants with it. A command has no
        ``sync``: the service takes its changes over by itself.
        """
        self._tables = store.policy
        self._sync = sync
        self._audit = audit
        self._bus = bus
        self._servers = servers
        self._forget = forget
        self._conditions = sync.conditions if sync is not None else ConditionCompiler()
        self.token_ttl = token_ttl
        """Seconds that a token is good for, unless its grant says otherwise."""

    # -- grants

    async def grant(self, wanted: Grant, by: Principal) -> IssuedGrant:
        """Give a grant, whose ``server_id`` may be a name; make its agent if there is none.

        Raises InvalidChange, NotFound (the server) and NotPermitted.
        """
        grant = await self.prepare(wanted, by)
        now = grant.granted_at
        agent = AgentRecord(grant.agent_id, created_at=now, created_by=by.id)
        tokens = _NewTokens(now)
        async with self._act(by, "policy.grant", grant):
            given = await self._tables.grant(grant, agent, tokens.make)
            await self._refresh(grant.agent_id)
        self._announce("granted", given.grant, by)
        return tokens.issued(given)

    async def prepare(self, wanted: Grant, by: Principal) -> Grant:
        """Make a grant ready to be given. Raises as ``grant`` does."""
        _check_permitted(by, wanted.agent_id)
        now = time.time()
        grant = msgspec.structs.replace(
            wanted,
            id=str(uuid4()),
            server_id=self._find_server(wanted.server_id),
            granted_at=now,
            granted_by=by.id,
        )
        problems = check_grant(grant, by, now)
        if problems:
            raise InvalidChange(problems)
        await self._compile(grant.when)
        return grant

    async def revoke(self, grant_id: str, by: Principal) -> Grant:
        """Revoke a grant and its tokens. Raises NotFound and NotPermitted."""
        grant = await self._get(grant_id, by)
        async with self._act(by, "policy.revoke", grant):
            await self._tables.revoke(grant_id, time.time())
            await self._refresh(grant.agent_id)
        self._announce("revoked", grant, by)
        return grant

    async def renew_token(self, grant_id: str, by: Principal) -> IssuedGrant:
        """Make a new token of a grant; those before it are good no more.

        Raises NotFound, NotPermitted, and InvalidChange for a grant that needs or has none.
        """
        grant, now = await self._get(grant_id, by), time.time()
        needs_none = grant.token_mode in (NONE, APPROVAL)
        if needs_none or not grant.is_live(now):
            why = "needs no token" if needs_none else "has expired; give it again"
            raise InvalidChange([Problem(ProblemCode.INVALID_SCHEMA, "the grant", why)])
        tokens = _NewTokens(now)
        async with self._act(by, "token.renew", grant):
            given = await self._tables.renew_token(grant_id, now, tokens.make)
            await self._refresh(grant.agent_id)
        self._announce("token_renewed", grant, by)
        return tokens.issued(given)

    async def revoke_tokens(self, grant_id: str, by: Principal) -> int:
        """Revoke the unused tokens of a grant; return how many. Raises NotFound, NotPermitted."""
        grant = await self._get(grant_id, by)
        async with self._act(by, "token.revoke", grant):
            _, count = await self._tables.revoke_tokens(grant_id, time.time())
            await self._refresh(grant.agent_id)
        self._announce("token_revoked", grant, by)
        return count

    # -- agents

    async def bind_agent(
        self, agent_id: str, agent_type: str, declared: Sequence[str], by: Principal
    ) -> BoundAgent:
        """Register an agent; the tools that it declares replace those that were bound before.

        Raises InvalidChange and NotPermitted.
        """
        _check_permitted(by, agent_id)
        wrong = check_agent_id(agent_id)
        if wrong is not None:
            raise InvalidChange([wrong])
        now = time.time()
        tokens = _NewTokens(now)
        agent = AgentRecord(agent_id, agent_type, tuple(declared), now, by.id)
        work_out = partial(
            bind,
            agent_id,
            declared,
            servers=self._servers(),
            by=by,
            now=now,
            new_id=lambda: str(uuid4()),
            token_ttl=self.token_ttl,
        )
        detail = {"agent_type": agent_type, "declared_tools": list(declared)}
        async with self._audit.act(
            by.id, by.role.value, "agent.bind", target=agent_id, detail=detail
        ):
            made, _, given = await self._tables.bind(agent, now, work_out, tokens.make)
            await self._refresh(agent_id)
        self._publish("bound", agent_id, by, declared_tools=list(declared))
        return BoundAgent(made, [tokens.issued(one) for one in given])

    async def remove_agent(self, agent_id: str, by: Principal) -> list[str]:
        """Remove an agent with its grants, tokens and keys; return the ids of the keys.

        Raises NotFound and NotPermitted.
        """
        _check_permitted(by, agent_id)
        async with self._audit.act(by.id, by.role.value, "agent.remove", target=agent_id):
            removed = await self._tables.remove_agent(agent_id, time.time(), by.id)
            await self._refresh(agent_id)
        if self._forget is not None:
            self._forget(agent_id, [grant.id for grant in removed.grants])
        self._publish("removed", agent_id, by)
        return removed.keys

    # -- parts

    async def _compile(self, source: str) -> None:
        try:
            if source:
                await self._conditions.compile(source)
        except ConditionError as error:
            problem = Problem(ProblemCode.INVALID_SCHEMA, "when", str(error))
            raise InvalidChange([problem]) from None

    async def _refresh(self, agent_id: str) -> None:
        if self._sync is not None:
            await self._sync.refresh(agent_id)

    async def _get(self, grant_id: str, by: Principal) -> Grant:
        grant = await self._tables.grants.get(grant_id)
        _check_permitted(by, grant.agent_id)
        return grant

    def _find_server(self, ref: str) -> str:
        if ref == ANY:
            return ANY
        found = self._servers().get(ref)
        if found is None:
            raise NotFound(f"there is no server {ref!r}")
        return found

    def _act(self, by: Principal, action: str, grant: Grant) -> AbstractAsyncContextManager[None]:
        detail = {
            "grant_id": grant.id,
            "tool_name": grant.tool_name,
            "kinds": list(grant.kinds),
            "high_risk": grant.token_mode.value,  # a name with "token" in it would be redacted
            **({"when": grant.when} if grant.when else {}),
        }
        server = {} if grant.server_id == ANY else {"server_id": grant.server_id}
        given: dict[str, Any] = {"target": grant.agent_id, "detail": detail, **server}
        return self._audit.act(by.id, by.role.value, action, **given)

    def _announce(self, change: str, grant: Grant, by: Principal) -> None:
        self._publish(
            change,
            grant.agent_id,
            by,
            grant_id=grant.id,
            server_id=grant.server_id,
            tool_name=grant.tool_name,
        )

    def _publish(self, change: str, agent_id: str, by: Principal, **more: Any) -> None:
        data = {"agent_id": agent_id, "change": change, "by": by.id, **more}
        self._bus.publish(CHANGED, data, agent_id)


def _check_permitted(by: Principal, agent_id: str) -> None:
    if not can_change_policy_of(by, agent_id):
        raise NotPermitted("an orchestrator never changes its own policy; ask an administrator")


def token_ttl_of(settings: Settings) -> float:
    """Return the seconds that a token is good for, unless its grant says otherwise."""
    return settings.token_ttl_minutes * 60.0


# -- agents from before there were grants

MIGRATED_FILE: Final = "grants.migrated"
"""Its presence in the data directory says that this was done there: a store whose record of it was
removed gives nobody anything again."""
_LISTED: Final = 20
_SHARED_ID: Final = Role.AGENT.value
"""The agent id of keys that were made without one."""


async def migrate_agents(store: Store, audit: AuditLog, folder: Path) -> list[str]:
    """Give every agent that has a live key a grant of everything; return these agents.

    Call it before any key is made: a new store has none, and its agents begin with nothing.
    """
    if await store.policy.is_migrated():
        return []
    marker = folder / MIGRATED_FILE
    keys = [k for k in await store.keys.all() if k.role == Role.AGENT and k.revoked_at is None]
    by_agent = Counter(key.agent for key in keys)
    agents = sorted(by_agent)
    if agents and marker.exists():
        log.error(
            "the record that agents were given their grants is gone from the store, and none are"
            " given again. If the store was restored from a backup of an older version, delete %s"
            " and start again",
            marker,
        )
        return []
    now, me = time.time(), LOCAL_OWNER
    grants = [migrated_grant(str(uuid4()), agent, now) for agent in agents]
    if grants:
        detail = {"agents": len(agents), "ids": agents[:_LISTED]}
        async with audit.act(me.id, me.role, "policy.migrate", detail=detail):
            count = await store.policy.migrate(grants, GrantSource.MIGRATED.value, now)
    else:
        count = await store.policy.migrate((), GrantSource.MIGRATED.value, now)
    marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    marker.touch(mode=0o600)
    if not count:
        return []
    _tell(agents, by_agent)
    return agents


def _tell(agents: list[str], by_agent: Counter[str]) -> None:
    """Say what was done, and which keys cannot be told apart."""
    listed = ", ".join(agents[:_LISTED]) + (" …" if len(agents) > _LISTED else "")
    log.warning(
        "from now on agents may call only what they are granted. %d agents that had a key were"
        " granted everything, as before: %s. See GET /api/v1/mcp/policies; revoke these grants and"
        " give each agent what it needs",
        len(agents),
        listed,
    )
    if by_agent[_SHARED_ID] > 1:
        log.warning(
            "%d keys share the agent id %r, so they have the same grants: make keys with --agent ID"
            " to tell their users apart, and revoke these",
            by_agent[_SHARED_ID],
            _SHARED_ID,
        )
