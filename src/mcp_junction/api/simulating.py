"""Route ``POST /api/v1/mcp/policies/simulate``: what a change of grants would have done."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from mcp_junction.api.policies import as_grant_errors
from mcp_junction.api.policy_models import GrantRequest
from mcp_junction.api.rights import Right
from mcp_junction.api.routes import (
    AnyRequest,
    Context,
    caller,
    mcp_error_responses,
    read_model,
    route_options,
)
from mcp_junction.calls.methods import KIND_OF
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.explanation import PastCalls, simulate
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.risk import NO_RISK
from mcp_junction.store.records import AuditQuery, AuditRow
from mcp_junction.web.routing import Router, post

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


@post(
    "/policies/simulate",
    status_code=200,
    opt=route_options(Right.CHANGE_POLICY, SimulationRequest),
    responses=mcp_error_responses("SERVER_NOT_FOUND", "GRANT_NOT_FOUND", has_body=True),
    summary="Show what a change of grants would have done",
    description="Over the last calls of the agent, as the audit has them. Nothing is changed. The"
    " audit keeps no arguments: what a condition would decide depends. Tokens and approvals are"
    " taken as given.",
)
async def simulate_change(request: AnyRequest, context: Context) -> SimulationResult:
    asked = await read_model(request, SimulationRequest)
    if (asked.grant is None) is (asked.revoke is None):
        raise RequestError("VALIDATION_ERROR", "give either grant or revoke")
    with as_grant_errors():
        before, after = await _make_sets(context, asked, request)
    query = AuditQuery(agent=before.agent_id, limit=asked.last)
    rows = await context.store.audit.rows(query)
    counted = await asyncio.to_thread(_count_calls, rows)
    found = simulate(before, after, _read_calls(context, counted), time.time())
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
        raise NotFound(f"there is no grant {asked.revoke!r}")
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


ROUTES = Router("/api/v1/mcp", route_handlers=[simulate_change], tags=["policies"])
