"""Route ``/api/v1/settings``: shows the settings that the service runs with. Changes none."""

from __future__ import annotations

import msgspec

from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import Context, error_responses
from mcp_junction.redaction.settings import ShownSetting, show_settings
from mcp_junction.web.routing import Router, get


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


ROUTES = Router("/api/v1/settings", route_handlers=[list_settings], tags=["settings"])
