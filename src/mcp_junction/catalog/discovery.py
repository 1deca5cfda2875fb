"""Discovery: reads a server's lists page by page, within limits of items, bytes and seconds.

A fault in a list is logged once per server, however often the list is read.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw

from mcp_junction.catalog.items import TOOLS, ListItem, ListKind
from mcp_junction.errors import FrameError, Phase, ServerError, circular_error
from mcp_junction.protocol import cycles, encode, frames, param_headers
from mcp_junction.protocol.param_headers import MARK_BYTES, ParamHeader
from mcp_junction.protocol.versions import CALL_TIMEOUT
from mcp_junction.redaction.texts import redact_error
from mcp_junction.slices import Slices
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.catalog")

MAX_WARNINGS: Final = 1000
"""Warnings about one server; a hostile one could cause new ones without end."""

_warned: WeakKeyDictionary[Upstream, set[int]] = WeakKeyDictionary()


def warn_once(upstream: Upstream, words: str, *about: object) -> None:
    """Log a warning about a server, unless the same was logged before."""
    warned = _warned.setdefault(upstream, set())
    warning = hash((words, about))
    if warning in warned or len(warned) > MAX_WARNINGS:
        return
    warned.add(warning)
    if len(warned) <= MAX_WARNINGS:
        log.warning(words, *about)
    else:
        log.warning("server %r: there is more wrong with its lists than is told", upstream.key)


MAX_ITEMS: Final = 10_000
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_SECONDS: Final = 60.0
_MAX_PAGES: Final = 10_000
_list = msgspec.json.Decoder(list[Raw])


class Listing(NamedTuple):
    """One list of a server, as far as it was read."""

    offers: tuple[ListItem, ...] = ()
    shortfall: str = ""
    """Why it was not read to its end; empty when it was."""


async def discover(upstream: Upstream, kind: ListKind, timeout: float) -> Listing:
    """Read everything of one kind that a server offers, page by page. Raises ServerError."""
    if not upstream.offers(kind.capability):
        return Listing()
    offers: dict[str, ListItem] = {}
    shortfall = await _read_pages(upstream, kind, timeout, offers)
    if not shortfall:
        return Listing(tuple(offers.values()))
    shortfall = f"{kind.list_method} {shortfall}"
    warn_once(upstream, "server %r: %s; the rest of it is not served", upstream.key, shortfall)
    return Listing(tuple(offers.values()), shortfall)


async def _read_pages(
    upstream: Upstream, kind: ListKind, timeout: float, offers: dict[str, ListItem]
) -> str:
    """Fill ``offers`` page by page; return why that ended before the list did, if it did."""
    seen: set[bytes] = set()
    cursor: Raw | None = None
    size, until = 0, upstream.clock.now() + MAX_SECONDS
    meta = _list_meta(upstream)
    for _ in range(_MAX_PAGES):
        params = encode.dumps(meta if cursor is None else {**meta, "cursor": cursor})
        left = until - upstream.clock.now()
        if left <= 0:
            return f"takes longer than {MAX_SECONDS:g} s"
        outcome = await upstream.request(kind.list_method, params, min(timeout, left))
        if outcome.kind is not outcomes.OutcomeKind.RESULT:
            if outcome.code == CALL_TIMEOUT and left < timeout:
                return f"takes longer than {MAX_SECONDS:g} s"
            raise _list_error(upstream, kind, outcome.message)
        size += len(outcome.payload)
        if size > MAX_BYTES:
            return f"is larger than {MAX_BYTES // 1024 // 1024} MiB"
        cursor = await _read_page(upstream, kind, outcome.payload, offers)
        if len(offers) > MAX_ITEMS or (len(offers) == MAX_ITEMS and cursor is not None):
            for name in list(offers)[MAX_ITEMS:]:
                del offers[name]
            return f"has more than {MAX_ITEMS} items"
        if cursor is None:
            return ""
        if bytes(cursor) in seen:
            return "goes in a circle"
        seen.add(bytes(cursor))
    return f"has over {_MAX_PAGES} pages"


async def _read_page(
    upstream: Upstream, kind: ListKind, payload: Raw | bytes, offers: dict[str, ListItem]
) -> Raw | None:
    """Add a page's items to ``offers``, in slices; the cursor of the next one, if there is one."""
    try:
        page = frames.members(payload)
        items = _list.decode(page[kind.member])
    except (FrameError, KeyError, msgspec.DecodeError, RecursionError) as error:
        raise _list_error(upstream, kind, f"the answer makes no sense: {error}") from None
    if upstream.greeting is not None and upstream.greeting.junction_id:
        _check_cycle(upstream, page.get("_meta"))
    is_marked = kind is TOOLS and MARK_BYTES in bytes(payload)
    slices = Slices()
    for item in items:
        if slices.is_over:
            await slices.rest()
        members = frames.object_members(item)  # none, when it is no object
        name = frames.text(members.get(kind.key))
        headers = _headers(upstream, name, members) if is_marked else ()
        if headers is None:
            continue
        if not name or "\0" in name:  # which no store takes, and no program as an argument
            words = "lists something in %s without a %s that can be used; it is left out"
            warn_once(upstream, f"server %r {words}", upstream.key, kind.name, kind.key)
        elif name in offers:
            warn_once(
                upstream, "server %r lists %r twice; the first one stands", upstream.key, name
            )
        else:
            # A copy of its own, so that an item does not keep its whole page in memory.
            kept = {key: raw.copy() for key, raw in members.items()}
            offers[name] = ListItem(name, kept, headers)
    cursor = page.get("nextCursor")
    return cursor.copy() if cursor is not None and frames.text(cursor) else None


def _list_meta(upstream: Upstream) -> dict[str, Any]:
    """Return the ``_meta`` of a list request to another Junction; nothing for other servers."""
    is_junction = upstream.greeting is not None and upstream.greeting.junction_id
    return {"_meta": cycles.id_meta(upstream.policy.junction_id)} if is_junction else {}


def _check_cycle(upstream: Upstream, meta: Raw | None) -> None:
    """Note which Junctions are behind a server. Raises CircularError when this one is."""
    upstream.condition.reachable_junctions = reachable = cycles.reachable_in(meta)
    if upstream.policy.junction_id in reachable:
        raise circular_error(upstream.key)


def _headers(
    upstream: Upstream, name: str | None, members: dict[str, Raw]
) -> tuple[ParamHeader, ...] | None:
    """The arguments that a tool wants repeated as headers; None when it must not be called."""
    schema = members.get("inputSchema") or b""
    marked, fault = param_headers.read_marks(schema)
    if fault is None:
        return marked
    if not (upstream.definition.transport == "http" and upstream.is_stateless):
        return ()  # nobody sends it headers
    warn_once(upstream, "server %r: the tool %r is left out: %s", upstream.key, name, fault)
    return None


def _list_error(upstream: Upstream, kind: ListKind, message: str) -> ServerError:
    words = f"{kind.list_method} failed: {message}"
    link = upstream.current
    refused = link is not None and link.refuses_credentials
    error = ServerError(upstream.key, Phase.INITIALIZATION, words, refuses_credentials=refused)
    return redact_error(error, upstream.definition)
