"""Route ``GET /api/v1/events``: a resumable stream of server-sent events."""

from __future__ import annotations

from typing import Annotated

from mcp_junction.api.errors import field_error
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import AnyRequest, Context, caller, error_responses
from mcp_junction.web.messages import Stream
from mcp_junction.web.parameters import HeaderParameter, QueryParameter
from mcp_junction.web.routing import ResponseSpec, Router, get

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


ROUTES = Router("/api/v1/events", route_handlers=[follow_events], tags=["events"])
