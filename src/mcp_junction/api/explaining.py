"""Explains what would be decided about a call, for ``POST /api/v1/mcp/explain``."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from mcp_junction.api.context import ApiContext
from mcp_junction.api.policy_models import DecisionExplained, ExplainRequest
from mcp_junction.catalog.items import TOOLS
from mcp_junction.errors import ArgumentsError, NotFound, RequestError
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.policy.arguments import read_arguments
from mcp_junction.policy.decision import NO_GRANT, CallTarget
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.risk import assess
from mcp_junction.registry.known_tools import KnownTool


def explain_call(
    context: ApiContext, principal: Principal, asked: ExplainRequest
) -> DecisionExplained:
    """Explain a call. Raises NotFound and RequestError for what is not there.

    To an agent, what it may not call is explained like what does not exist.
    """
    is_agent = principal.role is Role.AGENT
    tool = _find_tool(context, asked, is_agent)
    policy, agent_id, now = context.live_policy, asked.agent_id, time.time()
    target = CallTarget("", asked.tool_name, TOOLS.name, assess(asked.tool_name))
    unknown = policy.explain(agent_id, target, now, server_name=asked.server_id)
    told = unknown
    if tool is not None:
        disabled = tool.reason.value if tool.reason is not None else ""
        target = CallTarget(tool.server_id, tool.name, TOOLS.name, tool.state.risk, disabled)
        told = policy.explain(agent_id, target, now, server_name=tool.server)
        if is_agent and told.rule == NO_GRANT:
            told, tool = unknown, None
    conditions = list(told.would_pass_if)
    if tool is not None and asked.params is not None:
        conditions += _check_params(tool, asked.params)
    return DecisionExplained(
        told.decision, told.rule, told.reason, told.cached, told.token_required, conditions
    )


def _find_tool(context: ApiContext, asked: ExplainRequest, is_agent: bool) -> KnownTool | None:
    try:
        context.registry.find(asked.server_id)
    except NotFound:
        if is_agent:
            return None
        raise
    tool = context.registry.tools.known.find(asked.server_id, asked.tool_name)
    if tool is None and not is_agent:
        raise RequestError("TOOL_NOT_FOUND", "the server neither lists nor declares such a tool")
    return tool


def _check_params(tool: KnownTool, params: dict[str, Any]) -> list[str]:
    """Say what is wrong with the arguments of a call, where there is a schema to check them by."""
    raw = tool.item.members.get("inputSchema")
    compiled = None if raw is None else SchemaCache().of(raw)
    if compiled is None:
        return []
    text = msgspec.json.encode(params)
    try:
        problems = compiled.find_problems(read_arguments(text), len(text))
    except ArgumentsError as error:
        return [str(error)]
    return [
        f"the arguments fit the schema; at {one.path or '/'}: {one.message}" for one in problems
    ]
