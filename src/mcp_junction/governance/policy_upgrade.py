"""Gives agents from before there were grants what they could do: once in the life of a store."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Final
from uuid import uuid4

from mcp_junction.audit.log import AuditLog
from mcp_junction.policy.grants import GrantSource, migrated_grant
from mcp_junction.policy.principal import LOCAL_OWNER, Role
from mcp_junction.store.store import Store

log = logging.getLogger("mcp_junction.governance")

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
