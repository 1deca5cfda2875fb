"""Routes ``/api/v1/mcp/policies`` and ``/agents``: grants, their tokens, and agents.

Why a call passes, and what a change would do, is asked in ``explaining.py``.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from msgspec import UNSET

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    caller,
    mcp_error_responses,
    respond_with_page,
)
from mcp_junction.api.policy_models import (
    Agent,
    AgentRegistration,
    GivenPolicyGrant,
    GrantRequest,
    PolicyGrant,
    RegisteredAgent,
    agent_model,
    given_model,
    grant_model,
)
from mcp_junction.api.policy_warnings import find_grant_warnings
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.errors import NotPermitted, RequestError
from mcp_junction.governance.policy_admin import IssuedGrant
from mcp_junction.policy.grants import OWNER_GRANT, Grant
from mcp_junction.policy.principal import (
    Principal,
    Role,
    can_read_policy_of,
    explain_refusal,
    has_right,
)
from mcp_junction.store.grants import AgentRecord
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, delete, get, post

GrantId = Annotated[str, PathParameter(max_length=300, description="The id of a grant.")]
AgentRef = Annotated[str, PathParameter(max_length=300, description="The id of an agent.")]
OfAgent = Annotated[
    str | None, QueryParameter(max_length=300, description="Only the grants of this agent.")
]
FOREIGN = "this is about another agent than the key's own; use a key that may read policies"


def check_readable(principal: Principal, agent_id: str) -> None:
    """Refuse to tell an agent about others. Raises RequestError."""
    if not can_read_policy_of(principal, agent_id):
        raise RequestError("DENIED", FOREIGN)


@post(
    "/policies/grant",
    opt=needs(Right.CHANGE_POLICY, GrantRequest),
    responses=mcp_error_responses("SERVER_NOT_FOUND", has_body=True),
    summary="Grant",
    description="Lets an agent call what the pattern matches. The same agent, server, pattern and"
    " kinds again are the same grant with the new terms and a new token. An agent that is not known"
    " is made. High-risk tools (names with write, delete, modify, update or create;"
    " `destructiveHint`; or set by the operator) also need what `token_mode` says.",
)
async def give_grant(
    request: AnyRequest, context: Context, body: GrantRequest
) -> Response[GivenPolicyGrant]:
    policies = context.policies
    issued = await policies.grant(body.to_grant(policies.token_ttl), caller(request))
    return Response(
        await _show_given(context, issued),
        status_code=201,
        headers={"location": f"/api/v1/mcp/policies/{issued.grant.id}"},
    )


async def _show_given(context: Context, issued: IssuedGrant) -> GivenPolicyGrant:
    """Show a grant that was given, with its token and what may be wrong with it."""
    shown = given_model(issued, context.server_names, time.time())
    shown.warnings = await find_grant_warnings(context, issued.grant) or UNSET
    return shown


@get(
    "/policies",
    opt=needs(Right.READ_POLICY),
    responses=mcp_error_responses(),
    summary="List all grants",
    description="By agent. The local owner's is listed with them while there is a local owner.",
)
async def list_grants(
    request: AnyRequest,
    context: Context,
    agent_id: OfAgent = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[PolicyGrant]]:
    return _show(request, context, _find_grants(context, agent_id), agent_id, limit, cursor)


@get(
    "/policies/{ref:str}",
    opt=needs(Right.READ_OWN_POLICY),
    responses=mcp_error_responses(),
    summary="List the grants of an agent",
    description="Expired ones too. An agent may read its own that are in force.",
)
async def list_agent_grants(
    request: AnyRequest,
    context: Context,
    ref: AgentRef,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[PolicyGrant]]:
    principal = caller(request)
    check_readable(principal, ref)
    if has_right(principal, Right.READ_POLICY):
        grants = _find_grants(context, ref)
    else:  # those that have ended may name what it sees no more
        own, now = context.live_policy.of(principal.grantee or ref).grants, time.time()
        grants = [grant for grant in own if grant.is_live(now)]
    return _show(request, context, grants, ref, limit, cursor)


@delete(
    "/policies/{ref:str}",
    opt=needs(Right.CHANGE_POLICY, of="GRANT"),
    responses=mcp_error_responses("GRANT_NOT_FOUND"),
    summary="Revoke a grant",
    description="With its tokens, at once: calls under way that no other grant allows are"
    " cancelled.",
)
async def revoke_grant(request: AnyRequest, context: Context, ref: GrantId) -> None:
    await context.policies.revoke(ref, caller(request))


@post(
    "/policies/{ref:str}/token",
    opt=needs(Right.CHANGE_POLICY, Nothing, of="GRANT"),
    responses=mcp_error_responses("GRANT_NOT_FOUND", has_body=True),
    summary="Renew the token of a grant",
    description="Tokens before it that were not used are good no more.",
)
async def renew_token(
    request: AnyRequest, context: Context, ref: GrantId
) -> Response[GivenPolicyGrant]:
    issued = await context.policies.renew_token(ref, caller(request))
    return Response(given_model(issued, context.server_names, time.time()), status_code=201)


@delete(
    "/policies/{ref:str}/token",
    opt=needs(Right.CHANGE_POLICY, of="GRANT"),
    responses=mcp_error_responses("GRANT_NOT_FOUND"),
    summary="Revoke the token of a grant",
    description="The grant stays; its high-risk calls need a new token.",
)
async def revoke_token(request: AnyRequest, context: Context, ref: GrantId) -> None:
    await context.policies.revoke_tokens(ref, caller(request))


def _find_grants(context: Context, agent_id: str | None) -> list[Grant]:
    """Find all grants, or those of one agent: stored ones and the door's."""
    policy, door = context.live_policy, context.governance.claim_grants
    agents = policy.agents if agent_id is None else [agent_id]
    grants = [grant for agent in agents for grant in policy.of(agent).grants]
    if door is not None:
        grants += door.all if agent_id is None else door.of(agent_id)
    return grants


def _show(
    request: AnyRequest,
    context: Context,
    grants: list[Grant],
    agent_id: str | None,
    limit: int,
    cursor: str | None,
) -> Response[list[PolicyGrant]]:
    """Show a page of the grants of all agents, or of one; the local owner's is among them."""
    if context.has_owner() and agent_id in (None, OWNER_GRANT.agent_id):
        grants.append(OWNER_GRANT)
    grants.sort(key=_by_agent)
    names, now, policy = context.server_names, time.time(), context.live_policy
    return respond_with_page(
        request,
        grants,
        _by_agent,
        limit,
        cursor,
        lambda one: grant_model(one, names, now, policy.tokens_of(one.agent_id).get(one.id, ())),
    )


def _by_agent(grant: Grant) -> tuple[str, str]:
    return grant.agent_id, grant.id


# -- agents


@post(
    "/agents",
    opt=needs(Right.CHANGE_POLICY, AgentRegistration),
    responses=mcp_error_responses(has_body=True),
    summary="Register an agent",
    description="Binds it to the tools that it declares: each becomes a grant. Registering it again"
    " replaces what was bound before, and leaves other grants alone.",
)
async def register_agent(
    request: AnyRequest, context: Context, body: AgentRegistration
) -> Response[RegisteredAgent]:
    by = caller(request)
    if body.create_key and not has_right(by, Right.CHANGE_KEYS):
        raise NotPermitted(explain_refusal(by, Right.CHANGE_KEYS))
    bound = await context.policies.bind_agent(
        body.agent_id, body.agent_type, body.declared_tools, by
    )
    agent = agent_model(bound.agent, _count_grants(context, bound.agent))
    given = [await _show_given(context, one) for one in bound.grants]
    shown = RegisteredAgent(**msgspec.structs.asdict(agent), bound=given)
    if body.create_key:
        key, shown.key = await context.make_key(Role.AGENT, body.agent_id, by)
        shown.key_id = key.id
    headers = {"location": f"/api/v1/mcp/agents/{body.agent_id}"}
    return Response(shown, status_code=201, headers=headers if body.agent_id.isascii() else {})


@get(
    "/agents",
    opt=needs(Right.READ_POLICY),
    responses=mcp_error_responses(),
    summary="List agents",
)
async def list_agents(
    request: AnyRequest, context: Context, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Response[list[Agent]]:
    agents = await context.store.policy.agents.all()
    return respond_with_page(
        request,
        agents,
        lambda one: (one.agent_id,),
        limit,
        cursor,
        lambda one: agent_model(one, _count_grants(context, one)),
    )


@get(
    "/agents/{agent_id:str}",
    opt=needs(Right.READ_OWN_POLICY, of="AGENT"),
    responses=mcp_error_responses("AGENT_NOT_FOUND"),
    summary="Show an agent",
    description="An agent may read about itself.",
)
async def show_agent(request: AnyRequest, context: Context, agent_id: AgentRef) -> Agent:
    check_readable(caller(request), agent_id)
    agent = await context.store.policy.agents.get(agent_id)
    return agent_model(agent, _count_grants(context, agent))


@delete(
    "/agents/{agent_id:str}",
    opt=needs(Right.CHANGE_POLICY, of="AGENT"),
    responses=mcp_error_responses("AGENT_NOT_FOUND"),
    summary="Remove an agent",
    description="Revokes its keys, grants and tokens, at once; what it has open ends.",
)
async def remove_agent(request: AnyRequest, context: Context, agent_id: AgentRef) -> None:
    await context.policies.remove_agent(agent_id, caller(request))
    await context.refresh_keys()


def _count_grants(context: Context, agent: AgentRecord) -> int:
    now = time.time()
    return sum(grant.is_live(now) for grant in context.live_policy.of(agent.agent_id).grants)


ROUTES = Router(
    "/api/v1/mcp",
    route_handlers=[
        give_grant,
        list_grants,
        list_agent_grants,
        revoke_grant,
        renew_token,
        revoke_token,
        register_agent,
        list_agents,
        show_agent,
        remove_agent,
    ],
    tags=["policies"],
)
