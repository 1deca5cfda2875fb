"""Calls of agents that have grants, through the stages that judge them."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from tests.calls.world import World

from mcp_junction.calls.call import Call, Carried, Snapshot
from mcp_junction.calls.methods import Address, address
from mcp_junction.calls.pipeline import GovernedStages, MethodStage
from mcp_junction.calls.stages.judge import Authorizer
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.catalog.scope import Scopes
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.governance.tool_facts import ToolFactsCache, ToolSettings
from mcp_junction.policy.conditions import GrantCondition
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.tokens import Token, hash_secret, read_token, write_token
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.protocol import encode, frames, names
from mcp_junction.sessions.session import Session
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.testing.link import FakeUpstream

AGENT = Principal("ann", Role.AGENT)
ADMIN = Principal("root", Role.ADMIN)
ORCHESTRATOR = Principal("conductor", Role.ORCHESTRATOR)
VIEWER = Principal("eve", Role.VIEWER)
NOW = 1_000_000.0
_ids = itertools.count(1)


def grant(tool: str = "*", server: str = "one", agent: str = "ann", **more: Any) -> Grant:
    server_id = server if server == "*" else f"id-{server}"
    return Grant(f"g{next(_ids)}", agent, server_id, tool, **more)


def token_of(given: Grant, **more: Any) -> tuple[Token, str]:
    """A token of a grant, and its text."""
    name = f"t{next(_ids)}"
    token = Token(name, given.id, hash_secret("secret"), NOW, NOW + 900, **more)
    return token, write_token(name, "secret")


class JudgedWorld(World):
    """A World in which grants decide. The wall clock stands at ``time``."""

    def __init__(
        self,
        *upstreams: FakeUpstream,
        settings: tuple[ToolSetting, ...] = (),
        schemas: SchemaCache | None = None,
        cache_ttl: float = 300.0,
        conditions: Mapping[str, GrantCondition] = {},
        **stages: Any,
    ) -> None:
        self.time = NOW
        ids = {one.key: f"id-{one.key}" for one in upstreams}
        self.policy = LivePolicy(ids, cache_ttl, conditions)
        self.facts = ToolFactsCache(ToolSettings(settings), schemas)
        self.authorizer = Authorizer(self.policy, self.facts, lambda: self.time)
        extra = {name: stages.pop(name) for name in ("strict_audit", "extra") if name in stages}
        judged = GovernedStages(
            authorize=MethodStage(self.authorizer.bind_authorize),
            recheck=MethodStage(self.authorizer.bind_recheck),
            **stages,
        )
        super().__init__(*upstreams, governed=judged, clock=FakeClock(), **extra)
        self.scopes = Scopes(self.policy)
        self.sessions: dict[Principal, Session] = {}

    def offer(self, upstream: FakeUpstream, **members: Any) -> None:
        """List tools with members of their own, or prompts and resources, for a server."""
        kinds: dict[str, tuple[ListItem, ...]] = {}
        for kind, items in members.items():
            key = "uri" if kind == "resources" else "name"
            kinds[kind] = tuple(
                ListItem(item[key], {k: Raw(encode.dumps(v)) for k, v in item.items()})
                for item in items
            )
        catalog = Catalog().with_offering(ServerLists(upstream, **kinds), [upstream.key])
        self.snapshot = Snapshot(catalog, self.handlers)

    def give(self, *grants: Grant, tokens: tuple[Token, ...] = (), agent: str = "ann") -> None:
        """Let an agent have these grants and no others."""
        self.policy.put(agent, grants, tokens, self.time)

    def session_of(self, principal: Principal) -> Session:
        if principal not in self.sessions:
            made = Session(principal, names.STDIO, self.sent.append, scopes=self.scopes)
            made.protocol_version = "2025-11-25"
            self.sessions[principal] = made
        return self.sessions[principal]

    def ask(
        self,
        name: str = "one:echo",
        principal: Principal = AGENT,
        *,
        arguments: Any = None,
        method: str = "tools/call",
        token: str | None = None,
        **carried: Any,
    ) -> Call:
        """A call of a principal, with what it carries."""
        key = "uri" if method.startswith("resources/") else "name"
        params = {key: name, "arguments": arguments or {}}
        return self.ask_raw(json.dumps(params).encode(), principal, method, token, **carried)

    def ask_raw(
        self,
        params: bytes,
        principal: Principal = AGENT,
        method: str = "tools/call",
        token: str | None = None,
        **carried: Any,
    ) -> Call:
        session, members = self.session_of(principal), frames.members(params)
        target: Address = address(method, members)
        call = Call(session, self.snapshot, method, target, members, session)
        presented = read_token(token) if token is not None else None
        if presented is not None or carried:  # else it takes the short ways, as nearly all calls
            call.carried = Carried(token=presented, **carried)
        return call
