"""Routes ``/api/v1/mcp/approvals``: calls that wait for a person, and decisions about them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mcp_junction.api.errors import errors_of
from mcp_junction.api.models import format_time
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    caller,
    decode_time_cursor,
    find_governed,
    mcp_error_responses,
    page_by_time,
    read_model,
)
from mcp_junction.governance.approvals import Approvals
from mcp_junction.policy.approvals import MAX_NOTE, ApprovalState
from mcp_junction.store.approvals import ApprovalQuery, ApprovalRecord
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
    asked = ApprovalQuery(time.time(), pending, decode_time_cursor(cursor), limit + 1)
    found = await _approvals(context).table.read(asked)
    items, headers = page_by_time(request, found, limit, lambda one: (one.requested_at, one.id))
    return Response([_show(context, record) for record in items], headers=headers)


@get(
    "/{approval_id:str}",
    opt=needs(Right.READ_POLICY),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND"),
    summary="Show a call that people were asked about",
)
async def show_approval(context: Context, approval_id: ApprovalId) -> Approval:
    with errors_of("APPROVAL"):
        return _show(context, await _approvals(context).table.find(approval_id))


@post(
    "/{approval_id:str}/reveal",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, Nothing),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND", has_body=True),
    summary="Show the arguments of such a call as they are",
    description="With any secrets in them. This is an act of its own in the audit.",
)
async def reveal_approval(
    request: AnyRequest, context: Context, approval_id: ApprovalId
) -> Approval:
    await read_model(request, Nothing, optional=True)
    with errors_of("APPROVAL"):
        record, arguments = await _approvals(context).reveal(approval_id, caller(request))
    shown = _show(context, record)
    shown.arguments = msgspec.json.decode(arguments) if arguments else None
    return shown


@post(
    "/{approval_id:str}/approve",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, ApprovalDecision),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND", "APPROVAL_DECIDED", has_body=True),
    summary="Approve a call",
    description="The same call passes once, until the request expires. Nobody decides about a call"
    " of its own, but for an administrator.",
)
async def approve_call(request: AnyRequest, context: Context, approval_id: ApprovalId) -> Approval:
    return await _decide(request, context, approval_id, True)


@post(
    "/{approval_id:str}/deny",
    status_code=200,
    opt=needs(Right.CHANGE_POLICY, ApprovalDecision),
    responses=mcp_error_responses("APPROVAL_NOT_FOUND", "APPROVAL_DECIDED", has_body=True),
    summary="Deny a call",
    description="The same call is refused until the request expires.",
)
async def deny_call(request: AnyRequest, context: Context, approval_id: ApprovalId) -> Approval:
    return await _decide(request, context, approval_id, False)


async def _decide(
    request: AnyRequest, context: Context, approval_id: str, approve: bool
) -> Approval:
    given = await read_model(request, ApprovalDecision, optional=True)
    with errors_of("APPROVAL"):
        approvals, who = _approvals(context), caller(request)
        return _show(context, await approvals.decide(approval_id, approve, who, given.note))


def _approvals(context: Context) -> Approvals:
    otherwise = "calls are not governed here, so nobody is asked"
    return find_governed(context, lambda governance: governance.approvals, otherwise)


def _show(context: Context, record: ApprovalRecord) -> Approval:
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


ROUTES = Router(
    "/api/v1/mcp/approvals",
    route_handlers=[list_approvals, show_approval, reveal_approval, approve_call, deny_call],
    tags=["policies"],
)
