"""Routes ``/api/v1/mcp/explain`` and ``/policies/simulate``: what would be decided, and why.

Nothing is called or changed. Grants themselves are in ``policies.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mcp_junction.api.conventions import (
    AnyRequest,
    Context,
    caller,
    mcp_error_responses,
    read_model,
)
from mcp_junction.api.policies import check_readable
from mcp_junction.api.policy_models import (
    ConditionExplained,
    ConditionPart,
    DecisionExplained,
    ExplainRequest,
    GrantRequest,
)
from mcp_junction.api.policy_warnings import describe_unknown_tool, find_grant_warnings
from mcp_junction.api.rights import Right, needs
from mcp_junction.calls.methods import KIND_OF
from mcp_junction.catalog.items import TOOLS
from mcp_junction.errors import ArgumentsError, NotFound, RequestError
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.policy.arguments import Arguments, pick, read_arguments
from mcp_junction.policy.cel_syntax import find_reads, parse_condition
from mcp_junction.policy.decision import NO_GRANT, CallTarget
from mcp_junction.policy.explanation import (
    ExplainedCondition,
    PastCalls,
    explain_owner,
    simulate,
)
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import OWNER_GRANT
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.risk import NO_RISK, assess
from mcp_junction.redaction.payloads import redact_value
from mcp_junction.registry.known_tools import KnownTool
from mcp_junction.store.audit_records import AuditQuery, AuditRow
from mcp_junction.web.routing import Router, post

_NO_OWNER: Final = (
    "/mcp lets the owner of this machine in without a key; start it again with:"
    " mcp-junction serve --owner-without-key"
)


@post(
    "/explain",
    status_code=200,
    opt=needs(Right.READ_OWN_POLICY, ExplainRequest),
    responses=mcp_error_responses("SERVER_NOT_FOUND", "TOOL_NOT_FOUND", has_body=True),
    summary="Explain whether a call would pass",
    description="Nothing is called, spent or counted. An agent may ask about itself; what it may"
    " not call is explained like what does not exist.",
)
async def explain(request: AnyRequest, context: Context, body: ExplainRequest) -> DecisionExplained:
    check_readable(caller(request), body.agent_id)
    return await _explain_call(context, caller(request), body)


async def _explain_call(
    context: Context, principal: Principal, asked: ExplainRequest
) -> DecisionExplained:
    """Explain a call. Raises NotFound and RequestError for what is not there.

    To an agent, what it may not call is explained like what does not exist.
    """
    is_agent = principal.role is Role.AGENT
    tool = await _find_tool(context, asked, is_agent)
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
    if not is_agent and agent_id == OWNER_GRANT.agent_id and context.has_owner():
        told = explain_owner(target, now)
    conditions = list(told.would_pass_if)
    if not is_agent and told.rule == NO_GRANT:
        conditions += _find_other_grants(context, agent_id, target)
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


def _find_other_grants(context: Context, agent_id: str, target: CallTarget) -> list[str]:
    """Say what beside a stored grant would allow a call: an access token, or being the owner."""
    found = []
    if (door := context.governance.claim_grants) is not None:
        found += door.find_conditions(agent_id, target)
    if agent_id == OWNER_GRANT.agent_id:
        found.append(_NO_OWNER)
    return found


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


async def _find_tool(context: Context, asked: ExplainRequest, is_agent: bool) -> KnownTool | None:
    try:
        context.registry.find(asked.server_id)
    except NotFound:
        if is_agent:
            return None
        raise
    tool = context.registry.tools.known.find(asked.server_id, asked.tool_name)
    if tool is None and not is_agent:
        words = await describe_unknown_tool(context, asked.server_id, asked.tool_name)
        raise RequestError("TOOL_NOT_FOUND", words)
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


# -- what a change of grants would have done

MAX_CALLS: Final = 10_000


class SimulationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A change of one agent's grants: one that is given, or one that is revoked."""

    grant: GrantRequest | None = None
    revoke: Annotated[str, Meta(max_length=300)] | None = None
    last: Annotated[
        int, Meta(ge=1, le=MAX_CALLS, description="Over so many calls of the agent.")
    ] = 1_000


class SimulatedCalls(msgspec.Struct):
    """Calls of one tool that the change would have decided otherwise."""

    server_id: Annotated[str, Meta(description="The server's name.", examples=["files"])]
    tool_name: Annotated[str, Meta(examples=["read_file"])]
    kind: Annotated[str, Meta(examples=["tools"])]
    before: Annotated[str, Meta(description="allow, deny or depends.", examples=["deny"])]
    after: Annotated[
        str,
        Meta(description="`depends`: on what a condition reads of the call.", examples=["allow"]),
    ]
    calls: int


class SimulationResult(msgspec.Struct):
    """What a change would have done to the last calls of an agent."""

    agent_id: str
    calls: Annotated[int, Meta(description="Calls that were looked at.")]
    unchanged: int
    newly_allowed: int
    newly_denied: int
    depends: Annotated[int, Meta(description="Calls that a condition would decide about.")]
    changes: list[SimulatedCalls]
    warnings: Annotated[
        list[str] | UnsetType, Meta(description="Why the grant may let nothing pass.")
    ] = UNSET


@post(
    "/policies/simulate",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, SimulationRequest),
    responses=mcp_error_responses("SERVER_NOT_FOUND", "GRANT_NOT_FOUND", has_body=True),
    summary="Show what a change of grants would have done",
    description="Over the last calls of the agent, as the audit has them. Nothing is changed. The"
    " audit keeps no arguments: what a condition would decide depends. Tokens and approvals are"
    " taken as given.",
)
async def simulate_change(request: AnyRequest, context: Context) -> SimulationResult:
    # It has to have a body, although none of its fields is required.
    asked = await read_model(request, SimulationRequest)
    if (asked.grant is None) is (asked.revoke is None):
        raise RequestError("VALIDATION_ERROR", "give either grant or revoke")
    before, after = await _make_sets(context, asked, request)
    query = AuditQuery(agent=before.agent_id, limit=asked.last)
    rows = await context.store.audit.rows(query)
    counted = await asyncio.to_thread(_count_calls, rows)
    found = simulate(before, after, _read_calls(context, counted), time.time())
    warnings, known = list[str](), {grant.id for grant in before.grants}
    for grant in after.grants:
        if grant.id not in known:
            warnings += await find_grant_warnings(context, grant, after)
    changed = [
        SimulatedCalls(
            one.target.server, one.target.name, one.target.kind, one.before, one.after, one.times
        )
        for one in found.changes
    ]
    return SimulationResult(
        before.agent_id,
        found.calls,
        found.unchanged,
        sum(one.calls for one in changed if one.after == "allow"),
        sum(one.calls for one in changed if one.after == "deny"),
        sum(one.calls for one in changed if one.after == "depends"),
        changed,
        warnings or UNSET,
    )


async def _make_sets(
    context: Context, asked: SimulationRequest, request: AnyRequest
) -> tuple[GrantSet, GrantSet]:
    """Make the grants of the agent as they are, and as they would be."""
    policies, live = context.policies, context.live_policy
    if asked.grant is not None:
        wanted = await policies.prepare(asked.grant.to_grant(policies.token_ttl), caller(request))
        before = live.of(wanted.agent_id)
        kept = [grant for grant in before.grants if grant.key != wanted.key]
        return before, live.make_set(wanted.agent_id, [*kept, wanted])
    every = (grant for agent in live.agents for grant in live.of(agent).grants)
    gone = next((grant for grant in every if grant.id == asked.revoke), None)
    if gone is None:
        raise RequestError("GRANT_NOT_FOUND", f"there is no grant {asked.revoke!r}")
    before = live.of(gone.agent_id)
    kept = [grant for grant in before.grants if grant.id != gone.id]
    return before, live.make_set(gone.agent_id, kept)


def _count_calls(rows: list[AuditRow]) -> Counter[tuple[str, str, str]]:
    """Count the calls of rows by kind, server and name; intents count with their outcomes."""
    times: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        kind = KIND_OF.get(row.action)
        if row.kind == "intent" or kind is None or row.server_id is None or row.tool_name is None:
            continue
        times[kind.capability, row.server_id, row.tool_name] += _count(row)
    return times


def _read_calls(context: Context, counted: Counter[tuple[str, str, str]]) -> Iterator[PastCalls]:
    """Make calls of what was counted."""
    known, names = context.registry.tools.known, context.server_names
    for (kind, server_id, name), times in counted.items():
        tool = known.find(server_id, name) if kind == "tools" else None
        target = CallTarget(
            server_id,
            name,
            kind,
            NO_RISK if tool is None else tool.state.risk,
            server=names.get(server_id, server_id),
            annotations=None if tool is None else tool.item.members.get("annotations"),
        )
        yield PastCalls(target, times)


def _count(row: AuditRow) -> int:
    detail: Any = {} if row.detail is None else msgspec.json.decode(row.detail)
    count = detail.get("count", 1) if isinstance(detail, dict) else 1
    return count if isinstance(count, int) else 1


ROUTES = Router("/api/v1/mcp", route_handlers=[explain, simulate_change], tags=["policies"])
