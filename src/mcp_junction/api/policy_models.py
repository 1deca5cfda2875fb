"""Bodies of the routes about grants and agents, as they are sent and answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mcp_junction.api.models import format_time
from mcp_junction.api.requests import Ref
from mcp_junction.governance.policy_admin import IssuedGrant
from mcp_junction.policy.cel_syntax import MAX_SOURCE
from mcp_junction.policy.grants import (
    ANY,
    INVOKE,
    MAX_CALLS,
    MAX_NOTE,
    MAX_TTL,
    SHORTEST_WINDOW,
    TOOLS,
    CallLimit,
    Grant,
    order_kinds,
)
from mcp_junction.policy.patterns import MAX_PATTERN
from mcp_junction.policy.principal import MAX_AGENT_ID
from mcp_junction.policy.tokens import Token, TokenMode
from mcp_junction.store.grants import AgentRecord

AgentId = Annotated[str, Meta(min_length=1, max_length=MAX_AGENT_ID, examples=["agent-001"])]
Pattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_PATTERN,
        description="A name, or a pattern: `*` stands for any characters, `?` for any one.",
        examples=["search", "read_*"],
    ),
]
ServerRef = Annotated[
    Ref, Meta(description="The server's id or name; `*` is every server.", examples=["context7"])
]
Kind = Annotated[str, Meta(pattern="^(tools|prompts|resources)$", examples=["tools"])]
TokenTtl = Annotated[
    float,
    Meta(gt=0, le=MAX_TTL, description="Seconds that a token is good for.", examples=[900]),
]
Moment = Annotated[
    datetime, Meta(tz=True, description="When the grant ends.", examples=["2030-01-31T12:00:00Z"])
]
MAX_DECLARED: Final = 1_000


class GrantLimits(msgspec.Struct, forbid_unknown_fields=True):
    """At most so many calls within so many seconds."""

    calls: Annotated[int, Meta(ge=1, le=MAX_CALLS, examples=[100])]
    per: Annotated[float, Meta(ge=SHORTEST_WINDOW, le=MAX_TTL, examples=[3600])]


class GrantRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What an agent may call, get or read."""

    agent_id: AgentId
    server_id: ServerRef
    tool_name: Pattern
    actions: Annotated[
        tuple[str, ...], Meta(description="`invoke` is the only one.", examples=[["invoke"]])
    ] = (INVOKE,)
    kinds: Annotated[
        tuple[Kind, ...],
        Meta(
            min_length=1,
            max_length=3,
            description="What the pattern is for: names of tools and prompts, URIs of resources.",
            examples=[["tools"]],
        ),
    ] = (TOOLS,)
    when: Annotated[
        str,
        Meta(
            max_length=MAX_SOURCE,
            description="A condition on each call, in CEL: over `agent`, `tool`, `args`, `request`"
            " and `now`. The grant lets pass only calls for which it is true.",
            examples=['args.path.startsWith("/srv/public/")'],
        ),
    ] = ""
    limits: GrantLimits | None = None
    token_mode: Annotated[
        TokenMode,
        Meta(description="When a high-risk call passes. `none` is an administrator's to give."),
    ] = TokenMode.WINDOW
    token_ttl: TokenTtl | None = None
    token_id: Annotated[
        None, Meta(description="The answer names the token; a request may only leave it null.")
    ] = None
    expires_at: Moment | None = None
    note: Annotated[str, Meta(max_length=MAX_NOTE, examples=["for the nightly report"])] = ""

    def to_grant(self, default_ttl: float) -> Grant:
        """Make the grant that is asked for; who gives it, and when, is filled in later."""
        limits = None if self.limits is None else CallLimit(self.limits.calls, self.limits.per)
        return Grant(
            id="",
            agent_id=self.agent_id,
            server_id=self.server_id,
            tool_name=self.tool_name,
            kinds=order_kinds(self.kinds),
            actions=self.actions,
            when=self.when.strip(),
            limits=limits,
            token_mode=self.token_mode,
            token_ttl=default_ttl if self.token_ttl is None else self.token_ttl,
            expires_at=None if self.expires_at is None else self.expires_at.timestamp(),
            note=self.note,
        )


class PolicyGrant(msgspec.Struct):
    """A grant: it allows its agent what its pattern matches. Any one of several allows."""

    id: Annotated[str, Meta(examples=["2f4b0c9e-6d9c-4c0e-9a3f-0c9d8e7f6a5b"])]
    agent_id: AgentId
    server_id: Annotated[str, Meta(description="The server's name, or `*`.", examples=["context7"])]
    tool_name: Pattern
    kinds: list[Kind]
    actions: list[str]
    when: Annotated[str, Meta(description="The condition on each call; empty is none.")]
    limits: GrantLimits | None
    token_mode: TokenMode
    token_ttl: Annotated[float, Meta(description="Seconds.", examples=[900])]
    expires_at: Annotated[str | None, Meta(description="When it ends; null is never.")]
    is_live: Annotated[bool, Meta(description="Whether it has not expired.")]
    granted_at: str | None
    granted_by: str
    note: str
    source: Annotated[
        str,
        Meta(
            description="How it came about: granted; bound by the declared tools of its agent;"
            " migrated, because the agent had a key before there were grants; owner, of the local"
            " owner.",
            examples=["granted"],
        ),
    ]
    version: Annotated[int, Meta(description="How often it was given.", examples=[1])]
    token_expires_at: Annotated[
        str | None, Meta(description="Until when high-risk calls pass by its latest token.")
    ] = None


class GivenPolicyGrant(PolicyGrant):
    """A grant with its new token, which is shown this once."""

    token_id: str | None = None
    token: Annotated[
        str | None,
        Meta(description="Shown once.", examples=["jtk_0a1b2c3d4e5f6071_…"]),
    ] = None
    warnings: Annotated[
        list[str] | UnsetType,
        Meta(description="Why it may let nothing pass: it is given all the same."),
    ] = UNSET


class AgentRegistration(msgspec.Struct, forbid_unknown_fields=True):
    """An agent to register, and the tools that it is bound to."""

    agent_id: AgentId
    agent_type: Annotated[str, Meta(max_length=100, examples=["researcher"])] = ""
    declared_tools: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=600)]],
        Meta(
            max_length=MAX_DECLARED,
            description="Each as `server:tool`; the tool may be a pattern. They replace what was"
            " bound before, and leave other grants alone.",
            examples=[["context7:search"]],
        ),
    ] = []
    create_key: Annotated[
        bool, Meta(description="Make a key of the role agent for it; an administrator's to do.")
    ] = False


class Agent(msgspec.Struct):
    """An agent that is known by its registration, or by a grant."""

    agent_id: AgentId
    agent_type: str
    declared_tools: list[str]
    created_at: str | None
    created_by: str
    grants: Annotated[int, Meta(description="How many it has that have not expired.")]


class RegisteredAgent(Agent):
    """An agent with what it was bound to; its tokens and its key are shown this once."""

    bound: list[GivenPolicyGrant] = []
    key_id: str | UnsetType = UNSET
    key: Annotated[str | UnsetType, Meta(description="Shown once.", examples=["jct_…"])] = UNSET


class ExplainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call that an agent might make."""

    agent_id: AgentId
    server_id: Annotated[Ref, Meta(description="Id or name.", examples=["context7"])]
    tool_name: Annotated[str, Meta(min_length=1, max_length=1_000, examples=["search"])]
    params: Annotated[
        dict[str, Any] | None,
        Meta(description="Its arguments, to be checked by the tool's schema.", examples=[{}]),
    ] = None


class ConditionPart(msgspec.Struct):
    """An operand of a condition's `&&` and `||`, and what it comes to."""

    text: Annotated[str, Meta(examples=['args.path.startsWith("/srv/public/")'])]
    value: Annotated[
        str, Meta(description="true, false, or why it is neither.", examples=["false"])
    ]


class ConditionExplained(msgspec.Struct):
    """A condition of a grant that covers the call, over the params that were given."""

    grant_id: str
    when: str
    is_met: bool
    parts: list[ConditionPart]
    reads: Annotated[
        dict[str, Any],
        Meta(description="What it reads of the params; secrets are left out."),
    ]


class DecisionExplained(msgspec.Struct):
    """What would be decided about a call now, why, and what would let it pass."""

    decision: Annotated[str, Meta(description="ALLOW or DENY.", examples=["DENY"])]
    rule: Annotated[
        str,
        Meta(
            description="What decides: `grant:ID`, `default` (no grant allows it), `condition`,"
            " `token`, `role` or `store`.",
            examples=["default"],
        ),
    ]
    reason: str
    cached: bool
    token_required: bool
    would_pass_if: list[str]
    conditions: Annotated[
        list[ConditionExplained],
        Meta(description="Those of the grants that cover the call, part by part."),
    ] = []


def grant_model(
    grant: Grant, names: Mapping[str, str], now: float, tokens: Iterable[Token] = ()
) -> PolicyGrant:
    """Make the answer for a grant; ``names`` leads from ids of servers to their names."""
    live = [token.expires_at for token in tokens if token.is_live(now) and token.used_at is None]
    return PolicyGrant(
        id=grant.id,
        agent_id=grant.agent_id,
        server_id=ANY if grant.server_id == ANY else names.get(grant.server_id, grant.server_id),
        tool_name=grant.tool_name,
        kinds=list(grant.kinds),
        actions=list(grant.actions),
        when=grant.when,
        limits=None if grant.limits is None else GrantLimits(grant.limits.calls, grant.limits.per),
        token_mode=grant.token_mode,
        token_ttl=grant.token_ttl,
        expires_at=format_time(grant.expires_at),
        is_live=grant.is_live(now),
        granted_at=format_time(grant.granted_at),
        granted_by=grant.granted_by,
        note=grant.note,
        source=grant.source.value,
        version=grant.version,
        token_expires_at=format_time(max(live, default=None)),
    )


def given_model(issued: IssuedGrant, names: Mapping[str, str], now: float) -> GivenPolicyGrant:
    """Make the answer for a grant that was given, with its token."""
    token = issued.token
    shown = grant_model(issued.grant, names, now, () if token is None else (token,))
    return GivenPolicyGrant(
        **msgspec.structs.asdict(shown),
        token_id=None if token is None else token.id,
        token=issued.token_text,
    )


def agent_model(agent: AgentRecord, grants: int) -> Agent:
    """Make the answer for an agent, which has so many grants."""
    return Agent(
        agent.agent_id,
        agent.agent_type,
        list(agent.declared_tools),
        format_time(agent.created_at),
        agent.created_by,
        grants,
    )
