"""Inquiry: a request of our own to a server, not a client's."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Raw

from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.link import OwnedLink
from mcp_junction.upstream.outcome import Outcome


async def inquire(
    link: OwnedLink, server: str, method: str, params: bytes, meta: dict[str, Raw], timeout: float
) -> Outcome:
    """Ends by answer, loss of the link, or in time. ``meta`` tells a stateless server who asks."""
    flight = new_flight(method)
    flight.params = sealed(params, meta) if link.era is Era.STATELESS else params
    link.send(flight)
    either: set[asyncio.Future[Any]] = {flight.future, link.closed}
    await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if flight.future.done():
        return flight.future.result()
    if link.closed.done():
        return outcomes.link_lost(server, flight.delivery, "the link ended")
    late = outcomes.timed_out(server, flight.delivery, timeout)
    flight.abandon(late, "timed out")
    return late


def sealed(params: bytes, meta: dict[str, Raw]) -> bytes:
    """Params with our own envelope around them."""
    found = frames.members(params)
    envelope.sealed(found, meta)
    return encode.dumps(found)
