"""Routes ``/api/v1/mcp/webhook``: what the webhook was told, and what was given up."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mcp_junction.api.models import format_time
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    AnyRequest,
    Context,
    caller,
    mcp_error_responses,
    read_model,
    route_options,
)
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.store.events import DeliveryState
from mcp_junction.web.parameters import PathParameter
from mcp_junction.web.routing import Router, get, post

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
    opt=route_options(Right.CHANGE_POLICY, Nothing),
    responses=mcp_error_responses("NOT_FOUND", has_body=True),
    summary="Deliver once more what was given up",
    description="At once, with all tries anew, under the same `webhook-id`.",
)
async def retry_delivery(request: AnyRequest, context: Context, delivery_id: DeliveryId) -> None:
    await read_model(request, Nothing, optional=True)
    webhook, who = _webhook(context), caller(request)
    act = context.registry.audit.act(who.id, who.role.value, "webhook.retry", target=delivery_id)
    async with act:
        try:
            await webhook.retry(delivery_id)
        except NotFound as error:
            raise RequestError("NOT_FOUND", f"{error}; see GET …/webhook") from None


def _webhook(context: Context) -> Webhook:
    governance = context.junction.governance
    if governance is None or governance.webhook is None:
        raise RequestError("NOT_FOUND", "there is no webhook; set webhook_url and webhook_secret")
    return governance.webhook


ROUTES = Router("/api/v1/mcp", route_handlers=[show_webhook, retry_delivery], tags=["mcp"])
