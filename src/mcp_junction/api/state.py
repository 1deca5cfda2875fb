"""``/api/v1/aggregator/state`` and ``/health``: how the whole stands."""

from __future__ import annotations

from litestar import Router, get

from mcp_junction.api.access import Right, needs
from mcp_junction.api.models import Health, shown_health
from mcp_junction.api.routes import InRoom, outcomes
from mcp_junction.registry.state import State


@get(
    "/state",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes(),
    summary="Show how many servers and tools there are, and how they stand",
)
async def show_state(room: InRoom) -> State:
    return room.registry.state()


@get(
    "/health",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes(),
    summary="Show the health of every server",
)
async def show_health(room: InRoom) -> Health:
    servers = [shown_health(record) for record in room.registry.all()]
    well = all(one.status == "CONNECTED" for one in servers if one.enabled)
    return Health("healthy" if well else "degraded", servers)


ROUTES = Router("/api/v1/aggregator", route_handlers=[show_state, show_health], tags=["state"])
