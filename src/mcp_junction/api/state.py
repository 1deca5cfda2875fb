"""Routes about the service as a whole: its state and health, its settings, its events.

The webhook, which is told of some events, has its routes here, too.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mcp_junction.api.conventions import (
    AnyRequest,
    Context,
    caller,
    error_responses,
    mcp_error_responses,
)
from mcp_junction.api.errors import field_error
from mcp_junction.api.models import Health, format_time, health_model
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.redaction.settings import ShownSetting, show_settings
from mcp_junction.registry.metrics import State
from mcp_junction.store.events import DeliveryState
from mcp_junction.web.messages import Stream
from mcp_junction.web.routing import (
    HeaderParameter,
    PathParameter,
    QueryParameter,
    ResponseSpec,
    Router,
    get,
    post,
)


@get(
    "/state",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses(),
    summary="Show how many servers and tools there are, and how they stand",
)
async def show_state(context: Context) -> State:
    return context.registry.state()


@get(
    "/health",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses(),
    summary="Show the health of every server",
)
async def show_health(context: Context) -> Health:
    servers = [health_model(record) for record in context.registry.all()]
    well = all(one.status == "CONNECTED" for one in servers if one.enabled)
    return Health("healthy" if well else "degraded", servers)


class SettingList(msgspec.Struct):
    """All settings, in the order in which they are documented."""

    items: list[ShownSetting]
    total: int


@get(
    opt=needs(Right.READ_SETTINGS),
    responses=error_responses(),
    summary="Show the settings that the service runs with",
    description="Each with its default and where its value comes from; secrets are masked. They"
    " are read at the start: a changed file or variable counts from the next one on.",
)
async def list_settings(context: Context) -> SettingList:
    config = context.junction.config
    items = show_settings(config.settings, config.sources)
    return SettingList(items, len(items))


Last = Annotated[
    str | None,
    HeaderParameter(
        name="Last-Event-ID",
        max_length=40,
        description="The id of the last event that was seen: the stream goes on after it."
        " Without one it begins with what happens next; 0 begins with the oldest that is kept.",
    ),
]
Types = Annotated[
    str | None,
    QueryParameter(max_length=400, description="Only these types of events, with commas between."),
]
Follow = Annotated[
    bool, QueryParameter(description="Go on as things happen; false ends with what is there now.")
]
_STREAM = ResponseSpec(
    str,
    media_type="text/event-stream",
    description="`id`, `event` and `data` (JSON) of each event.",
)
_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


@get(
    opt=needs(Right.READ_EVENTS, or_only=Right.READ_OWN_CALLS),
    responses={**error_responses(), 200: _STREAM},
    summary="Follow what happens",
    description="Agents read `call.completed` of their own calls, as they end.",
)
async def follow_events(
    request: AnyRequest,
    context: Context,
    last_event_id: Last = None,
    types: Types = None,
    follow: Follow = True,
) -> Stream:
    after = None if last_event_id is None else _parse_event_id(last_event_id)
    wanted = frozenset(word.strip() for word in (types or "").split(",") if word.strip())
    events = await context.streams.open(caller(request), after, wanted, follow=follow)
    return Stream(events, media_type="text/event-stream", headers=_HEADERS)


def _parse_event_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise field_error("Last-Event-ID", "must be the id of an event, or 0")
    return int(text)


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
    opt=needs(Right.READ_AUDIT),
    responses=mcp_error_responses("NOT_FOUND"),
    summary="Show what the webhook was told",
)
async def show_webhook(context: Context) -> WebhookState:
    webhook = _get_webhook(context)
    table = webhook.table
    delivered, waiting, failed = [await table.count(state) for state in _COUNTED]
    dead = [
        GivenUp(one.id, one.type, format_time(one.at), one.attempts, one.why or "")
        for one in await table.read_dead(_SHOWN)
    ]
    return WebhookState(webhook.url, delivered, waiting, failed, dead)


@post(
    "/{delivery_id:str}/retry",
    status_code=204,
    opt=needs(Right.CHANGE_POLICY, Nothing),
    responses=mcp_error_responses("NOT_FOUND", has_body=True),
    summary="Deliver once more what was given up",
    description="At once, with all tries anew, under the same `webhook-id`.",
)
async def retry_delivery(request: AnyRequest, context: Context, delivery_id: DeliveryId) -> None:
    webhook, who = _get_webhook(context), caller(request)
    async with context.registry.audit.act(
        who.id, who.role.value, "webhook.retry", target=delivery_id
    ):
        try:
            await webhook.retry(delivery_id)
        except NotFound as error:
            raise RequestError("NOT_FOUND", f"{error}; see GET …/webhook") from None


def _get_webhook(context: Context) -> Webhook:
    webhook = context.governance.webhook
    if webhook is None:
        raise RequestError("NOT_FOUND", "there is no webhook; set webhook_url and webhook_secret")
    return webhook


ROUTES = Router(
    "/api/v1",
    route_handlers=[
        Router("/aggregator", route_handlers=[show_state, show_health], tags=["state"]),
        Router("/settings", route_handlers=[list_settings], tags=["settings"]),
        Router("/events", route_handlers=[follow_events], tags=["events"]),
        Router("/mcp/webhook", route_handlers=[show_webhook, retry_delivery], tags=["mcp"]),
    ],
)
