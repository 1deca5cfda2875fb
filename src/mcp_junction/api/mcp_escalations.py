"""Routes ``/api/v1/mcp/escalations`` and ``/webhook``: what operators are told of.

Escalations are calls that failed although all was tried; the webhook is told of them, and of other
events.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mcp_junction.api.models import format_time
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    caller,
    decode_time_cursor,
    find_governed,
    mcp_error_responses,
    page_by_time,
    read_model,
)
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.governance.escalations import Escalations
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.policy.principal import Principal, has_right
from mcp_junction.store.escalations import EscalationQuery, EscalationRecord
from mcp_junction.store.events import DeliveryState
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, get, post

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
    "/escalations",
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
        decode_time_cursor(cursor),
        limit + 1,
    )
    found = await _escalations(context).read(asked)
    found = [record for record in found if record.first_at >= beginning]
    items, headers = page_by_time(request, found, limit, lambda one: (one.first_at, one.id))
    names = context.server_names
    return Response([_show(names, record) for record in items], headers=headers)


@post(
    "/escalations/{escalation_id:str}/acknowledge",
    opt=needs(Right.CHANGE_POLICY, Acknowledgement),
    status_code=200,
    responses=mcp_error_responses("ESCALATION_NOT_FOUND", has_body=True),
    summary="Acknowledge an escalation",
    description="The next failure makes another one. A second time changes nothing.",
)
async def acknowledge_escalation(
    request: AnyRequest, context: Context, escalation_id: EscalationId
) -> Escalation:
    given = await read_model(request, Acknowledgement, optional=True)
    escalations, who = _escalations(context), caller(request)
    async with context.registry.audit.act(
        who.id, who.role.value, "escalation.acknowledge", target=escalation_id[:100]
    ):
        try:
            record = await escalations.acknowledge(escalation_id, who.id, given.note)
        except NotFound:
            raise RequestError(
                "ESCALATION_NOT_FOUND", "there is no such escalation; see GET …/escalations"
            ) from None
    return _show(context.server_names, record)


def _escalations(context: Context) -> Escalations:
    otherwise = "calls are not governed here, so nothing is escalated"
    return find_governed(context, lambda governance: governance.escalations, otherwise)


def _find_server(context: Context, principal: Principal, ref: str) -> str:
    """Return the id of a server; for an agent, one that is not known is like one without calls."""
    try:
        return context.registry.find(ref).id
    except NotFound:
        if has_right(principal, Right.READ_AUDIT):
            raise
        return ""


def _show(names: dict[str, str], record: EscalationRecord) -> Escalation:
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


# -- the webhook

DeliveryId = Annotated[str, PathParameter(max_length=40, description="Its `webhook-id`.")]
_SHOWN: Final = 200
_COUNTED: Final = (DeliveryState.DELIVERED, DeliveryState.WAITING, DeliveryState.DEAD)


class GivenUp(msgspec.Struct):
    """A delivery that was given up."""

    id: Annotated[str, Meta(description="The `webhook-id` that it had.", examples=["evt_17"])]
    type: Annotated[str, Meta(examples=["call.escalated"])]
    at: Annotated[str | None, Meta(description="When it happened.")]
    attempts: int
    why: Annotated[str, Meta(examples=["it answered 500"])]


class WebhookState(msgspec.Struct):
    """What the webhook was told."""

    url: Annotated[str, Meta(description="Without secrets.")]
    delivered: Annotated[int, Meta(description="Deliveries of the last day.")]
    waiting: Annotated[int, Meta(description="Deliveries that were not accepted yet.")]
    failed: Annotated[int, Meta(description="Deliveries of 30 days that were given up.")]
    dead: Annotated[list[GivenUp], Meta(description="The last of those, the newest first.")]


@get(
    "/webhook",
    opt=needs(Right.READ_AUDIT),
    responses=mcp_error_responses("NOT_FOUND"),
    summary="Show what the webhook was told",
)
async def show_webhook(context: Context) -> WebhookState:
    webhook = _webhook(context)
    table = webhook.table
    delivered, waiting, failed = [await table.count(state) for state in _COUNTED]
    dead = [
        GivenUp(one.id, one.type, format_time(one.at), one.attempts, one.why or "")
        for one in await table.read_dead(_SHOWN)
    ]
    return WebhookState(webhook.url, delivered, waiting, failed, dead)


@post(
    "/webhook/{delivery_id:str}/retry",
    status_code=204,
    opt=needs(Right.CHANGE_POLICY, Nothing),
    responses=mcp_error_responses("NOT_FOUND", has_body=True),
    summary="Deliver once more what was given up",
    description="At once, with all tries anew, under the same `webhook-id`.",
)
async def retry_delivery(request: AnyRequest, context: Context, delivery_id: DeliveryId) -> None:
    await read_model(request, Nothing, optional=True)
    webhook, who = _webhook(context), caller(request)
    async with context.registry.audit.act(
        who.id, who.role.value, "webhook.retry", target=delivery_id
    ):
        try:
            await webhook.retry(delivery_id)
        except NotFound as error:
            raise RequestError("NOT_FOUND", f"{error}; see GET …/webhook") from None


def _webhook(context: Context) -> Webhook:
    otherwise = "there is no webhook; set webhook_url and webhook_secret"
    return find_governed(context, lambda governance: governance.webhook, otherwise)


ROUTES = Router(
    "/api/v1/mcp",
    route_handlers=[list_escalations, acknowledge_escalation, show_webhook, retry_delivery],
    tags=["mcp"],
)
