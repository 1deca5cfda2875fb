"""What tool lists cost, and what search spares, in tokens of four bytes."""

import msgspec
import pytest

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import PROMPTS, TOOLS, ListItem, ServerLists
from mcp_junction.catalog.scope import OPEN
from mcp_junction.config.settings import ALL, SEARCH
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.names import PLATFORM, STRICT
from mcp_junction.testing.link import FakeUpstream


def offering(count: int) -> ServerLists:
    described = [
        {"name": f"tool-{n}", "description": "é" * 50, "inputSchema": {"type": "object"}, "ö": n}
        for n in range(count)
    ]
    offers = [ListItem(one["name"], frames.members(encode.dumps(one))) for one in described]
    return ServerLists(FakeUpstream("box"), tuple(offers))


def catalog(exposure: str, count: int, page_size: int = 1_000) -> Catalog:
    return Catalog(exposure=exposure, page_size=page_size).with_offering(offering(count), ["box"])


@pytest.mark.req("J-TOKENS")
@pytest.mark.parametrize("spelling", [PLATFORM, STRICT])
@pytest.mark.parametrize("count", [0, 1, 100])
async def test_what_search_spares_is_the_whole_list_less_what_was_listed(spelling, count):
    whole = len(catalog(ALL, count).view(spelling).items.page())
    searched = catalog(SEARCH, count)
    sent = len(searched.page(spelling, TOOLS, OPEN, None))
    assert searched.tokens.saved == (whole - sent) // 4
    assert searched.tokens.listed == sent // 4
    searched.rebuilt().page(spelling, TOOLS, OPEN, None)
    assert searched.tokens.saved == (2 * whole - 2 * sent) // 4, "over all generations"


@pytest.mark.req("J-TOKENS")
async def test_where_everything_is_listed_nothing_is_spared():
    listed = catalog(ALL, 30, page_size=10)
    cursor, sent = None, 0
    for _ in range(3):
        page = listed.page(PLATFORM, TOOLS, OPEN, cursor)
        cursor = msgspec.json.decode(page).get("nextCursor")
        sent += len(page)
    assert cursor is None
    assert (listed.tokens.saved, listed.tokens.listed) == (0, sent // 4)
    listed.page(PLATFORM, PROMPTS, OPEN, None)
    assert listed.tokens.listed == sent // 4, "prompts are no tools"
