"""Discovery: read a server's list to its end, whatever the server does with its cursors."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError, Phase, ServerError
from mcp_junction.protocol import encode, frames
from mcp_junction.upstream.outcome import Kind
from mcp_junction.upstream.server import Upstream

log = logging.getLogger("mcp_junction.catalog")

_MAX_PAGES = 10_000
_list = msgspec.json.Decoder(list[dict[str, Raw]])


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool, as its server described it; every member still raw."""

    name: str
    members: dict[str, Raw]


async def discover_tools(upstream: Upstream, timeout: float) -> tuple[Offer, ...]:
    """Every tool of a server, page by page. Raises ServerError."""
    if not upstream.offers("tools"):
        return ()
    offers: dict[str, Offer] = {}
    seen: set[bytes] = set()
    cursor: Raw | None = None
    for _ in range(_MAX_PAGES):
        params = encode.dumps({"cursor": cursor}) if cursor is not None else b"{}"
        outcome = await upstream.request("tools/list", params, timeout)
        if outcome.kind is not Kind.RESULT:
            raise _failed(upstream, outcome.message)
        cursor = _read_page(upstream, outcome.payload, offers)
        if cursor is None:
            return tuple(offers.values())
        if bytes(cursor) in seen:
            log.warning("server %r: tools/list goes in a circle; stopped there", upstream.key)
            return tuple(offers.values())
        seen.add(bytes(cursor))
    log.warning("server %r: tools/list has over %d pages; stopped there", upstream.key, _MAX_PAGES)
    return tuple(offers.values())


def _read_page(upstream: Upstream, payload: Raw | bytes, offers: dict[str, Offer]) -> Raw | None:
    """Add a page's tools to ``offers``; the cursor of the next one, if there is one."""
    try:
        page = frames.members(payload)
        tools = _list.decode(page["tools"])
    except (FrameError, KeyError, msgspec.DecodeError, RecursionError) as error:
        raise _failed(upstream, f"its answer to tools/list makes no sense: {error}") from None
    for members in tools:
        name = frames.text(members.get("name"))
        if not name:
            log.warning("server %r lists a tool without a name; it is left out", upstream.key)
        elif name in offers:
            log.warning("server %r lists %r twice; the first one stands", upstream.key, name)
        else:
            # A copy of its own, so that a tool does not keep its whole page in memory.
            own = {key: raw.copy() for key, raw in members.items()}
            offers[name] = Offer(name, own)
    cursor = page.get("nextCursor")
    return cursor.copy() if cursor is not None and frames.text(cursor) else None


def _failed(upstream: Upstream, message: str) -> ServerError:
    return ServerError(upstream.key, Phase.INITIALIZATION, f"tools/list failed: {message}")
