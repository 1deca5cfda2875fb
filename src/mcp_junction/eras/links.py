"""EraLinks: chooses the link that a call takes to its server, and the adapter between the eras.

The link is the server's own, or one for the client's session, for the client's era, or for the
capabilities that the client has.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from mcp_junction.calls.attempt import Adapter, Chosen
from mcp_junction.calls.call import Call
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.methods import SUBSCRIBING
from mcp_junction.catalog.items import Route
from mcp_junction.eras.adapters import (
    HandshakeAdapter,
    HandshakeToStatelessAdapter,
    StatelessAdapter,
    StatelessToHandshakeAdapter,
    SubscriptionAdapter,
    wait_for_link,
)
from mcp_junction.eras.resume import Resume
from mcp_junction.protocol.versions import HANDSHAKE, STATELESS
from mcp_junction.tasks import TaskScope, wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.extra_links import MAX_POOLED
from mcp_junction.upstream.handshake import Hello
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.upstream import Upstream

_ERA_WAIT: Final = 5.0


class EraLinks:
    """The one adapter of each pair of eras, and the choice among them."""

    def __init__(self, resume: Resume, deadlines: Deadlines, tasks: TaskScope) -> None:
        self._handshake: Adapter = HandshakeAdapter()
        self._stateless: Adapter = StatelessAdapter(resume.parked_calls, deadlines)
        self._to_stateless: Adapter = HandshakeToStatelessAdapter()
        self._to_handshake: Adapter = StatelessToHandshakeAdapter(resume, tasks)
        self._subscription: Adapter = SubscriptionAdapter()

    def adapter_for(self, call: Call, upstream: Upstream, link: Link) -> Adapter | None:
        """The adapter for a server's own link where there can be no other for this call."""
        era, callers = link.era, call.caller.era
        if era is callers:
            if upstream.separates and upstream.is_isolated:
                return None
            if era is HANDSHAKE:
                return self._handshake
            same = self._stateless
        else:
            definition = upstream.definition
            if callers not in upstream.refused_eras or definition.isolation != "shared":
                return None
            if era is HANDSHAKE:  # over HTTP the client may need a conversation of its own
                return self._to_handshake if definition.transport == "stdio" else None
            same = self._to_stateless
        return self._subscription if call.method in SUBSCRIBING else same

    async def choose(self, call: Call, route: Route) -> Chosen | Outcome:
        """Choose the link that this caller has to take, once there is one."""
        upstream, caller = route.upstream, call.caller
        if upstream.is_shut:
            return upstream.unavailable()
        has_own_link = upstream.is_isolated and caller.era is HANDSHAKE
        if call.method in SUBSCRIBING and not has_own_link:
            link = await wait_for_link(call, upstream, route)
            if link is not None:
                return self._subscription, upstream, link
            return call.ended_by or upstream.unavailable()
        # Its link says of which era the server is.
        if caller.era is STATELESS and not await wait_for_link(call, upstream, route):
            return call.ended_by or upstream.unavailable()
        reached = await self._upstream(call, upstream)
        if reached is None:
            return outcomes.overloaded(upstream.key, MAX_POOLED)
        upstream = reached
        link = await wait_for_link(call, upstream, route)
        if link is None:
            return call.ended_by or upstream.unavailable()
        return self._adapter(call, link), upstream, link

    def _adapter(self, call: Call, link: Link) -> Adapter:
        if call.caller.era is HANDSHAKE:
            return self._handshake if link.era is HANDSHAKE else self._to_stateless
        return self._stateless if link.era is STATELESS else self._to_handshake

    async def _upstream(self, call: Call, upstream: Upstream) -> Upstream | None:
        """The server as this caller reaches it: in the caller's own era, if it speaks that.

        None when callers need more links of their own than there can be.
        """
        caller = call.caller
        if upstream.link is not None and upstream.link.era is not caller.era:
            if upstream.extra_links.speaks(caller.era) is None:
                await _wait_for_era(call, upstream)
            if upstream.extra_links.speaks(caller.era):
                upstream = await upstream.for_era(caller.era) or upstream
        if caller.era is HANDSHAKE:
            user = call.user
            if user.acting_for and upstream.is_isolated and call.method not in SUBSCRIBING:
                hello = replace(caller.hello(), user=user)
                return upstream.extra_links.pooled((caller, user), hello)
            return upstream.for_session(caller, lambda: _hello_of(call, upstream))
        if upstream.link is not None and upstream.link.era is STATELESS:
            return upstream
        return self._for_stateless(call, upstream)

    @staticmethod
    def _for_stateless(call: Call, upstream: Upstream) -> Upstream | None:
        """The link to a handshake server that knows this stateless client's capabilities.

        A conversation over HTTP costs little. A process is shared, and says it can be asked all.
        None where there are too many, and the link that is left is not for all.
        """
        if upstream.definition.transport == "stdio" and not upstream.is_isolated:
            return upstream
        caller, user = call.caller, call.user
        hello = _hello_of(call, upstream)
        alone = (caller.endpoint.name, hello.client) if upstream.is_isolated else None
        found = upstream.extra_links.pooled((user, hello.capabilities, alone), hello)
        return upstream if found is None and not upstream.is_isolated else found


def _hello_of(call: Call, upstream: Upstream) -> Hello:
    """What a server is told of a caller; for whom, where each agent has its own credential."""
    hello, user = call.caller.hello(), call.user
    is_for_one = user.acting_for or upstream.definition.is_per_agent
    return replace(hello, user=user) if is_for_one else hello


async def _wait_for_era(call: Call, upstream: Upstream) -> None:
    """Wait until it is known whether a server speaks the caller's era, but not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ERA_WAIT):
            await wait_unless(call.ending, upstream.for_era(call.caller.era))
