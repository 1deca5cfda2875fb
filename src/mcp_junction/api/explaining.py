"""Explains what would be decided about a call, for ``POST /api/v1/mcp/explain``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from mcp_junction.api.context import ApiContext
from mcp_junction.api.policy_models import (
    ConditionExplained,
    ConditionPart,
    DecisionExplained,
    ExplainRequest,
)
from mcp_junction.catalog.items import TOOLS
from mcp_junction.errors import ArgumentsError, NotFound, RequestError
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.policy.arguments import Arguments, pick, read_arguments
from mcp_junction.policy.cel_syntax import find_reads, parse_condition
from mcp_junction.policy.decision import NO_GRANT, CallTarget
from mcp_junction.policy.explanation import ExplainedCondition
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.risk import assess
from mcp_junction.redaction.payloads import redact_value
from mcp_junction.registry.known_tools import KnownTool


async def explain_call(
    context: ApiContext, principal: Principal, asked: ExplainRequest
) -> DecisionExplained:
    """Explain a call. Raises NotFound and RequestError for what is not there.

    To an agent, what it may not call is explained like what does not exist.
    """
    is_agent = principal.role is Role.AGENT
    tool = _find_tool(context, asked, is_agent)
    policy, agent_id, now = context.live_policy, asked.agent_id, time.time()
    own = (principal.grantee or agent_id) if is_agent else None
    target = CallTarget("", asked.tool_name, TOOLS.name, assess(asked.tool_name))
    unknown = policy.explain(agent_id, target, now, server_name=asked.server_id, grantee=own)
    told = unknown
    if tool is not None:
        disabled = tool.reason.value if tool.reason is not None else ""
        notes = tool.item.members.get("annotations")
        target = CallTarget(
            tool.server_id, tool.name, TOOLS.name, tool.state.risk, disabled, tool.server, notes
        )
        claims = principal.claims.values if is_agent else {}
        call = None if asked.params is None else _AskedCall(asked.params, claims)
        told = policy.explain(
            agent_id, target, now, server_name=tool.server, grantee=own, call=call
        )
        if is_agent and told.rule == NO_GRANT:
            told, tool = unknown, None
    conditions = list(told.would_pass_if)
    if not is_agent and told.rule == NO_GRANT and context.door_grants is not None:
        conditions += context.door_grants.find_conditions(agent_id, target)
    if tool is not None and asked.params is not None:
        conditions += await asyncio.to_thread(_check_params, tool, asked.params)
    return DecisionExplained(
        told.decision,
        told.rule,
        told.reason,
        told.cached,
        told.token_required,
        conditions,
        [_explain_condition(one, asked.params or {}) for one in told.conditions],
    )


class _AskedCall:
    """A call that is asked about: it has arguments, and the claims of an agent that asks itself."""

    def __init__(self, params: dict[str, Any], claims: Mapping[str, Any]) -> None:
        self._params = params
        self._claims = claims

    def read_arguments(self) -> Arguments:
        return read_arguments(msgspec.json.encode(self._params))

    def read_field(self, name: str) -> None:
        return None

    def read_claims(self) -> Mapping[str, Any]:
        return self._claims


def _explain_condition(one: ExplainedCondition, params: dict[str, Any]) -> ConditionExplained:
    shown, reads = redact_value(params), {}
    for path in sorted(find_reads(parse_condition(one.when))):
        pointer = "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in path[1:])
        if path[0] == "args":
            with suppress(ArgumentsError):  # it is not there
                reads[".".join(path)] = pick(shown, pointer)
    parts = [ConditionPart(part.text, part.value) for part in one.parts]
    return ConditionExplained(one.grant_id, one.when, one.is_met, parts, reads)


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
