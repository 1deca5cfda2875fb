"""Route ``/api/v1/mcp/webhook``: what the webhook was told, and what was given up."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Router, get
from msgspec import Meta

from mcp_junction.api.models import format_time
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import Context, mcp_error_responses
from mcp_junction.errors import RequestError


class GivenUp(msgspec.Struct):
    """A delivery that was given up."""

    id: Annotated[str, Meta(description="The `webhook-id` that it had.", examples=["evt_17"])]
    type: Annotated[str, Meta(examples=["call.escalated"])]
    at: Annotated[str | None, Meta(description="When it happened.")]
    attempts: int
    why: Annotated[str, Meta(examples=["it answered 500"])]


class WebhookState(msgspec.Struct):
    """What this process has told the webhook since it was started."""

    url: Annotated[str, Meta(description="Without secrets.")]
    delivered: int
    waiting: Annotated[int, Meta(description="Deliveries under way.")]
    failed: Annotated[int, Meta(description="Deliveries that were given up.")]
    dead: Annotated[list[GivenUp], Meta(description="The last of those.")]


@get(
    "/webhook",
    opt=needs(Right.READ_AUDIT),
    responses=mcp_error_responses("NOT_FOUND"),
    summary="Show what the webhook was told",
)
async def show_webhook(context: Context) -> WebhookState:
    governance = context.junction.governance
    webhook = None if governance is None else governance.webhook
    if webhook is None:
        raise RequestError("NOT_FOUND", "there is no webhook; set webhook_url and webhook_secret")
    dead = [
        GivenUp(one.id, one.type, format_time(one.at), one.attempts, one.why)
        for one in webhook.dead
    ]
    return WebhookState(webhook.url, webhook.delivered, webhook.waiting, webhook.failed, dead)


ROUTES = Router("/api/v1/mcp", route_handlers=[show_webhook], tags=["mcp"])
