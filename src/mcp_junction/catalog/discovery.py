"""Discovery: read a server's lists to their end, whatever the server does with its cursors."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcp_junction.catalog.kinds import TOOLS, Kind
from mcp_junction.catalog.remarks import remark
from mcp_junction.errors import FrameError, Phase, ServerError
from mcp_junction.protocol import encode, envelope, frames, param_headers
from mcp_junction.protocol.param_headers import MARK_BYTES, ParamHeader
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.discretion import discreet
from mcp_junction.upstream.server import Upstream

_MAX_PAGES = 10_000
_list = msgspec.json.Decoder(list[Raw])


class Offer(msgspec.Struct, frozen=True):
    """One tool, prompt, resource or template, as its server described it; members still raw."""

    name: str
    members: dict[str, Raw]
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that a call repeats as headers, to a stateless server over HTTP."""


async def discover(upstream: Upstream, kind: Kind, timeout: float) -> tuple[Offer, ...]:
    """Everything of one kind that a server offers, page by page. Raises ServerError."""
    if not upstream.offers(kind.capability):
        return ()
    offers: dict[str, Offer] = {}
    seen: set[bytes] = set()
    cursor: Raw | None = None
    for _ in range(_MAX_PAGES):
        params = encode.dumps({"cursor": cursor}) if cursor is not None else b"{}"
        outcome = await upstream.request(kind.list_method, params, timeout)
        if outcome.kind is not outcomes.Kind.RESULT:
            raise _failed(upstream, kind, outcome.message)
        cursor = _read_page(upstream, kind, outcome.payload, offers)
        if cursor is None:
            return tuple(offers.values())
        if bytes(cursor) in seen:
            words = "goes in a circle"
            break
        seen.add(bytes(cursor))
    else:
        words = f"has over {_MAX_PAGES} pages"
    remark(upstream, "server %r: %s %s; stopped there", upstream.key, kind.list_method, words)
    return tuple(offers.values())


async def discover_tools(upstream: Upstream, timeout: float) -> tuple[Offer, ...]:
    """Every tool of a server. Raises ServerError."""
    return await discover(upstream, TOOLS, timeout)


def _read_page(
    upstream: Upstream, kind: Kind, payload: Raw | bytes, offers: dict[str, Offer]
) -> Raw | None:
    """Add a page's items to ``offers``; the cursor of the next one, if there is one."""
    try:
        page = frames.members(payload)
        items = _list.decode(page[kind.member])
    except (FrameError, KeyError, msgspec.DecodeError, RecursionError) as error:
        raise _failed(upstream, kind, f"the answer makes no sense: {error}") from None
    is_marked = kind is TOOLS and MARK_BYTES in bytes(payload)
    for item in items:
        members = envelope.members(item)  # none, when it is no object
        name = frames.text(members.get(kind.key))
        headers = _headers(upstream, name, members) if is_marked else ()
        if headers is None:
            continue
        if not name or "\0" in name:  # which no store takes, and no program as an argument
            words = "lists something in %s without a %s that can be used; it is left out"
            remark(upstream, f"server %r {words}", upstream.key, kind.name, kind.key)
        elif name in offers:
            remark(upstream, "server %r lists %r twice; the first one stands", upstream.key, name)
        else:
            # A copy of its own, so that an item does not keep its whole page in memory.
            kept = {key: raw.copy() for key, raw in members.items()}
            offers[name] = Offer(name, kept, headers)
    cursor = page.get("nextCursor")
    return cursor.copy() if cursor is not None and frames.text(cursor) else None


def _headers(
    upstream: Upstream, name: str | None, members: dict[str, Raw]
) -> tuple[ParamHeader, ...] | None:
    """The arguments that a tool wants repeated as headers; None when it must not be called."""
    schema = members.get("inputSchema") or b""
    fault = param_headers.fault(schema)
    if fault is None:
        return param_headers.find(schema)
    if not (upstream.definition.transport == "http" and upstream.is_stateless):
        return ()  # nobody sends it headers
    remark(upstream, "server %r: the tool %r is left out: %s", upstream.key, name, fault)
    return None


def _failed(upstream: Upstream, kind: Kind, message: str) -> ServerError:
    words = f"{kind.list_method} failed: {message}"
    link = upstream.current
    refused = link is not None and link.refuses_credentials
    error = ServerError(upstream.key, Phase.INITIALIZATION, words, refuses_credentials=refused)
    return discreet(error, upstream.definition)
