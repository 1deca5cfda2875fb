"""Routes ``/api/v1/mcp/approvals`` and ``/escalations``: what people decide about and see to.

Approvals are calls that wait for a person; escalations are calls that failed although all was
tried. The webhook, which is told of both, has its routes in ``state.py``.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    caller,
    mcp_error_responses,
    read_time_cursor,
    respond_by_time,
)
from mcp_junction.api.models import format_time
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.policy.approvals import MAX_NOTE, ApprovalState
from mcp_junction.policy.principal import Principal, has_right
from mcp_junction.store.grants import ApprovalQuery, ApprovalRecord
from mcp_junction.store.resilience import EscalationQuery, EscalationRecord
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, get, post

ApprovalId = Annotated[str, PathParameter(max_length=100, description="Its id.")]
IsPending = Annotated[bool, QueryParameter(description="Only those that wait for somebody.")]


class ApprovalDecision(msgspec.Struct, forbid_unknown_fields=True):
    """What an approver wants to say about it; who made the call is told."""

    note: Annotated[str, Meta(max_length=MAX_NOTE, examples=["seen with Ann"])] | None = None


class Approval(msgspec.Struct):
    """A call that a person was asked about."""

    id: Annotated[str, Meta(examples=["5f2d8a3b9c0e1f47"])]
    state: ApprovalState
    agent_id: Annotated[str, Meta(description="For whom the call is.", examples=["agent-001"])]
    asked_by: Annotated[str, Meta(description="Who made it.", examples=["agent-001"])]
    server_id: Annotated[str, Meta(description="The server's name.", examples=["files"])]
    tool_name: Annotated[str, Meta(examples=["delete_file"])]
    grant_id: str
    risk: Annotated[str, Meta(description="Why the tool is a high-risk one.")]
    preview: Annotated[
        str,
        Meta(
            description="The arguments, as JSON, without secrets. What the server asks its client"
            " during the call, and what that answers, is not covered."
        ),
    ]
    correlation_id: str | None
    requested_at: str | None
    expires_at: str | None
    decided_at: str | None
    decided_by: str | None
    note: str | None
    arguments: Annotated[
        Any | UnsetType, Meta(description="As they are; only where they are revealed.")
    ] = UNSET


@get(
    "/",
    opt=needs(Right.READ_POLICY),
    responses=mcp_error_responses(),
    summary="List the calls that people were asked about",
    description="The newest first; by default only those that wait for somebody.",
)
async def list_approvals(
    request: AnyRequest,
    context: Context,
    pending: IsPending = True,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[Approval]]:
    asked = ApprovalQuery(time.time(), pending, read_time_cursor(cursor), limit + 1)
    found = await context.governance.approvals.table.read(asked)
    return respond_by_time(
        request,
        found,
        limit,
        lambda one: (one.requested_at, one.id),
        lambda one: _show_approval(context, one),
    )


@get(
    "/{approval_id:str}",
    opt=needs(Right.READ_POLICY, of="APPROVAL"),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND"),
    summary="Show a call that people were asked about",
)
async def show_approval(context: Context, approval_id: ApprovalId) -> Approval:
    return _show_approval(context, await context.governance.approvals.table.get(approval_id))


@post(
    "/{approval_id:str}/reveal",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, Nothing, of="APPROVAL"),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND", has_body=True),
    summary="Show the arguments of such a call as they are",
    description="With any secrets in them. This is an act of its own in the audit.",
)
async def reveal_approval(
    request: AnyRequest, context: Context, approval_id: ApprovalId
) -> Approval:
    record, arguments = await context.governance.approvals.reveal(approval_id, caller(request))
    shown = _show_approval(context, record)
    shown.arguments = msgspec.json.decode(arguments) if arguments else None
    return shown


@post(
    "/{approval_id:str}/approve",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, ApprovalDecision, of="APPROVAL"),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND", "APPROVAL_DECIDED", has_body=True),
    summary="Approve a call",
    description="The same call passes once, until the request expires. Nobody decides about a call"
    " of its own, but for an administrator.",
)
async def approve_call(
    request: AnyRequest, context: Context, approval_id: ApprovalId, body: ApprovalDecision
) -> Approval:
    return await _decide(request, context, approval_id, True, body)


@post(
    "/{approval_id:str}/deny",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, ApprovalDecision, of="APPROVAL"),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND", "APPROVAL_DECIDED", has_body=True),
    summary="Deny a call",
    description="The same call is refused until the request expires.",
)
async def deny_call(
    request: AnyRequest, context: Context, approval_id: ApprovalId, body: ApprovalDecision
) -> Approval:
    return await _decide(request, context, approval_id, False, body)


async def _decide(
    request: AnyRequest, context: Context, approval_id: str, approve: bool, given: ApprovalDecision
) -> Approval:
    approvals, who = context.governance.approvals, caller(request)
    return _show_approval(context, await approvals.decide(approval_id, approve, who, given.note))


def _show_approval(context: Context, record: ApprovalRecord) -> Approval:
    return Approval(
        record.id,
        record.state_at(time.time()),
        record.agent_id,
        record.asked_by,
        context.server_names.get(record.server_id, record.server_id),
        record.tool_name,
        record.grant_id,
        record.risk,
        record.preview,
        record.correlation_id,
        format_time(record.requested_at),
        format_time(record.expires_at),
        format_time(record.decided_at),
        record.decided_by,
        record.note,
    )


# -- escalations

_MAX_NOTE: Final = 2_000
EscalationId = Annotated[str, PathParameter(max_length=100, description="Its id.")]
OfAgent = Annotated[
    str | None, QueryParameter(max_length=255, description="Only calls under this agent's name.")
]
Acknowledged = Annotated[
    bool | None, QueryParameter(description="Only those that were, or were not, acknowledged.")
]


class Escalation(msgspec.Struct):
    """Calls of one agent to one tool that failed although all was tried."""

    id: Annotated[str, Meta(examples=["5f2d8a3b9c0e1f47"])]
    agent_id: Annotated[str, Meta(examples=["agent-001"])]
    server_id: Annotated[str, Meta(description="The server's name.", examples=["context7"])]
    tool_name: Annotated[str, Meta(examples=["search"])]
    failure: Annotated[str, Meta(description="How the last one failed.", examples=["timeout"])]
    message: Annotated[str, Meta(examples=["server 'context7' did not answer within 30 s"])]
    delivery: Annotated[
        str | None,
        Meta(description="Whether the last one may have run.", examples=["unknown"]),
    ]
    attempts: Annotated[int, Meta(description="Of the last one.", examples=[3])]
    correlation_id: Annotated[str | None, Meta(description="Of the last one.")]
    count: Annotated[int, Meta(description="How many failed until somebody saw to it.")]
    first_at: str | None
    last_at: str | None
    acknowledged_at: str | None
    acknowledged_by: str | None
    note: str | None


class Acknowledgement(msgspec.Struct, forbid_unknown_fields=True):
    """Who acknowledges may say what was done."""

    note: Annotated[
        Annotated[str, Meta(max_length=_MAX_NOTE)] | None, Meta(examples=["the key had expired"])
    ] = None


@get(
    opt=needs(Right.READ_AUDIT, or_only=Right.READ_OWN_CALLS),
    responses=mcp_error_responses("SERVER_NOT_FOUND"),
    summary="List calls that failed although all was tried",
    description="After all retries and fallbacks, the newest first; repeated failures share one"
    " until it is acknowledged. Agents see those of their own calls. The header `Link` leads to the"
    " next page.",
)
async def list_escalations(
    request: AnyRequest,
    context: Context,
    agent_id: OfAgent = None,
    server_id: OfServer = None,
    acknowledged: Acknowledged = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[Escalation]]:
    principal, beginning = caller(request), 0.0
    if not has_right(principal, Right.READ_AUDIT):
        beginning = await context.store.policy.agents.find_time_made(principal.id)
        if agent_id not in (None, principal.id):
            return Response([])
        agent_id = principal.id
    asked = EscalationQuery(
        agent_id,
        None if server_id is None else _find_server(context, principal, server_id),
        None if acknowledged is None else not acknowledged,
        read_time_cursor(cursor),
        limit + 1,
    )
    found = await context.governance.escalations.read(asked)
    found = [record for record in found if record.first_at >= beginning]
    names = context.server_names
    return respond_by_time(
        request,
        found,
        limit,
        lambda one: (one.first_at, one.id),
        lambda one: _show_escalation(names, one),
    )


@post(
    "/{escalation_id:str}/acknowledge",
    opt=needs(Right.CHANGE_POLICY, Acknowledgement),
    status_code=200,
    responses=mcp_error_responses("ESCALATION_NOT_FOUND", has_body=True),
    summary="Acknowledge an escalation",
    description="The next failure makes another one. A second time changes nothing.",
)
async def acknowledge_escalation(
    request: AnyRequest, context: Context, escalation_id: EscalationId, body: Acknowledgement
) -> Escalation:
    escalations, who = context.governance.escalations, caller(request)
    async with context.registry.audit.act(
        who.id, who.role.value, "escalation.acknowledge", target=escalation_id[:100]
    ):
        try:
            record = await escalations.acknowledge(escalation_id, who.id, body.note)
        except NotFound:
            raise RequestError(
                "ESCALATION_NOT_FOUND", "there is no such escalation; see GET …/escalations"
            ) from None
    return _show_escalation(context.server_names, record)


def _find_server(context: Context, principal: Principal, ref: str) -> str:
    """Return the id of a server; for an agent, one that is not known is like one without calls."""
    try:
        return context.registry.find(ref).id
    except NotFound:
        if has_right(principal, Right.READ_AUDIT):
            raise
        return ""


def _show_escalation(names: dict[str, str], record: EscalationRecord) -> Escalation:
    return Escalation(
        record.id,
        record.agent_id,
        names.get(record.server_id, record.server_id),
        record.tool_name,
        record.failure,
        record.message,
        record.delivery,
        record.attempts,
        record.correlation_id,
        record.count,
        format_time(record.first_at),
        format_time(record.last_at),
        format_time(record.acknowledged_at),
        record.acknowledged_by,
        record.note,
    )


ROUTES = Router(
    "/api/v1/mcp",
    route_handlers=[
        Router(
            "/approvals",
            route_handlers=[
                list_approvals,
                show_approval,
                reveal_approval,
                approve_call,
                deny_call,
            ],
            tags=["policies"],
        ),
        Router(
            "/escalations",
            route_handlers=[list_escalations, acknowledge_escalation],
            tags=["mcp"],
        ),
    ],
)
