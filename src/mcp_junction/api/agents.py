"""Routes ``/api/v1/mcp/agents``: register, list, show and remove agents."""

from __future__ import annotations

import time
from typing import Annotated

from mcp_junction.api.policies import check_readable
from mcp_junction.api.policy_models import (
    Agent,
    AgentRegistration,
    RegisteredAgent,
    agent_model,
    given_model,
    registered_model,
)
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    caller,
    mcp_error_responses,
    page_as_array,
    read_model,
    route_options,
)
from mcp_junction.errors import NotFound, NotPermitted, RequestError
from mcp_junction.policy.principal import Role, explain_refusal, has_right
from mcp_junction.store.grants import AgentRecord
from mcp_junction.web.messages import Response
from mcp_junction.web.parameters import PathParameter
from mcp_junction.web.routing import Router, delete, get, post

AgentRef = Annotated[str, PathParameter(max_length=300, description="The id of an agent.")]


@post(
    opt=route_options(Right.CHANGE_POLICY, AgentRegistration),
    responses=mcp_error_responses(has_body=True),
    summary="Register an agent",
    description="Binds it to the tools that it declares: each becomes a grant. Registering it again"
    " replaces what was bound before, and leaves other grants alone.",
)
async def register_agent(request: AnyRequest, context: Context) -> Response[RegisteredAgent]:
    wanted, by = await read_model(request, AgentRegistration), caller(request)
    if wanted.create_key and not has_right(by, Right.CHANGE_KEYS):
        raise NotPermitted(explain_refusal(by, Right.CHANGE_KEYS))
    bound = await context.policies.bind_agent(
        wanted.agent_id, wanted.agent_type, wanted.declared_tools, by
    )
    now, names = time.time(), context.server_names
    given = [given_model(one, names, now) for one in bound.grants]
    shown = registered_model(bound.agent, _count_grants(context, bound.agent), given)
    if wanted.create_key:
        key, shown.key = await context.make_key(Role.AGENT, wanted.agent_id, by)
        shown.key_id = key.id
    headers = {"location": f"/api/v1/mcp/agents/{wanted.agent_id}"}
    return Response(shown, status_code=201, headers=headers if wanted.agent_id.isascii() else {})


@get(opt=needs(Right.READ_POLICY), responses=mcp_error_responses(), summary="List agents")
async def list_agents(
    request: AnyRequest, context: Context, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Response[list[Agent]]:
    agents = await context.policies.agents()
    items, headers = page_as_array(request, agents, _by_id, limit, cursor)
    shown = [agent_model(one, _count_grants(context, one)) for one in items]
    return Response(shown, headers=headers)


@get(
    "/{agent_id:str}",
    opt=needs(Right.READ_OWN_POLICY),
    responses=mcp_error_responses("AGENT_NOT_FOUND"),
    summary="Show an agent",
    description="An agent may read about itself.",
)
async def show_agent(request: AnyRequest, context: Context, agent_id: AgentRef) -> Agent:
    check_readable(caller(request), agent_id)
    try:
        agent = await context.policies.agent(agent_id)
    except NotFound as error:
        raise RequestError("AGENT_NOT_FOUND", str(error)) from None
    return agent_model(agent, _count_grants(context, agent))


@delete(
    "/{agent_id:str}",
    opt=needs(Right.CHANGE_POLICY),
    responses=mcp_error_responses("AGENT_NOT_FOUND"),
    summary="Remove an agent",
    description="Revokes its keys, grants and tokens, at once; what it has open ends.",
)
async def remove_agent(request: AnyRequest, context: Context, agent_id: AgentRef) -> None:
    try:
        await context.policies.remove_agent(agent_id, caller(request))
    except NotFound as error:
        raise RequestError("AGENT_NOT_FOUND", str(error)) from None
    await context.refresh_keys()


def _count_grants(context: Context, agent: AgentRecord) -> int:
    now = time.time()
    return sum(grant.is_live(now) for grant in context.live_policy.of(agent.agent_id).grants)


def _by_id(agent: AgentRecord) -> tuple[str]:
    return (agent.agent_id,)


ROUTES = Router(
    "/api/v1/mcp/agents",
    route_handlers=[register_agent, list_agents, show_agent, remove_agent],
    tags=["policies"],
)
