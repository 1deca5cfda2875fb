"""Routes about the service as a whole: its state and health, its settings, what happens in it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mcp_junction.api.errors import field_error
from mcp_junction.api.models import (
    Health,
    health_model,
)
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    AnyRequest,
    Context,
    caller,
    error_responses,
)
from mcp_junction.redaction.connections import ShownSetting, show_settings
from mcp_junction.registry.metrics import State
from mcp_junction.web.messages import Stream
from mcp_junction.web.routing import HeaderParameter, QueryParameter, ResponseSpec, Router, get


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


ROUTES = Router(
    "/api/v1",
    route_handlers=[
        Router("/aggregator", route_handlers=[show_state, show_health], tags=["state"]),
        Router("/settings", route_handlers=[list_settings], tags=["settings"]),
        Router("/events", route_handlers=[follow_events], tags=["events"]),
    ],
)
