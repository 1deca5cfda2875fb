"""Connector: connects to a server, and explains why that failed.

It goes from opening the link to knowing what the server offers. When to connect is decided by the
Upstream that owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from mcp_junction.errors import EraError, Phase, ServerError, circular_error
from mcp_junction.protocol.versions import Era
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream.events import ConnectStep
from mcp_junction.upstream.failure_causes import add_cause
from mcp_junction.upstream.hello import Greeting, Hello
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.listening import ServerListen
from mcp_junction.upstream.negotiation import ServerQuirks

if TYPE_CHECKING:
    from mcp_junction.upstream.server import Upstream

log = logging.getLogger("mcp_junction.upstream")

Opener = Callable[["Upstream"], Awaitable[Link]]


class Connector:
    """The attempts at one server."""

    def __init__(
        self,
        of: Upstream,
        opener: Opener,
        hello: asyncio.Future[Hello],
        stop: asyncio.Event,
        steps: Sequence[ConnectStep],
        quirks: ServerQuirks,
        listening: ServerListen,
    ) -> None:
        self._of = of
        self._open = opener
        self._hello = hello
        self._stop = stop
        self._steps = steps
        self._quirks = quirks
        self._listening = listening

    async def make(self) -> Link | None:
        """A link on which the server has told what it offers; None when it was stopped meanwhile.

        Raises ServerError that says what it died of.
        """
        of = self._of
        began = of.clock.now()
        of.starts += 1
        link = of.current = await self._open_in_time()
        hello = await self._told_who_calls(link)
        if hello is None or not await wait_unless(self._stop, self._begin(link, hello)):
            return None
        of.start_seconds = of.clock.now() - began
        return link

    async def _open_in_time(self) -> Link:
        """A link of its own, in time: whoever must start the program may be stuck."""
        limit = self._of.terms.start_timeout
        try:
            return await asyncio.wait_for(self._open(self._of), limit)
        except TimeoutError:
            message = f"was not started within {limit:g} s"
            raise ServerError(self._of.key, Phase.STARTUP, message) from None

    async def _told_who_calls(self, link: Link) -> Hello | None:
        """Wait for the first client, so that the server is told the client's own capabilities."""
        if not self._hello.done():
            either: set[asyncio.Future[Any]] = {self._hello, link.closed}
            await wait_unless(self._stop, asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if link.closed.done() and not self._stop.is_set():
            raise await self.diagnosis(link, Phase.STARTUP, "at once")
        return None if self._stop.is_set() else self._hello.result()

    async def _begin(self, link: Link, hello: Hello) -> None:
        """Greet it and find out what it offers."""
        of = self._of
        if hello.user is not None:
            link.users.note(hello.user)
        greeting = of.greeting = await self._greet(link, hello)
        try:
            if link.era is Era.STATELESS:
                await self._listening.begin(link, greeting)
            for step in self._steps:
                await step(of)
        except ServerError as error:
            if link.closed.done():
                when = "before it had told what it offers"
                raise await self.diagnosis(link, Phase.INITIALIZATION, when) from None
            raise init_error(link, error.message) from None

    async def _greet(self, link: Link, hello: Hello) -> Greeting:
        greeting = await self._quirks.greet(link, hello, self._of.terms)
        if isinstance(greeting, Greeting):
            if greeting.junction_id and greeting.junction_id == self._of.terms.junction_id:
                raise circular_error(self._of.key)
            return greeting
        if hello.only and greeting.of_era:
            raise EraError(self._of.key, Phase.INITIALIZATION, greeting.words)
        if link.closed.done():
            raise await self.diagnosis(link, Phase.INITIALIZATION, "before it answered initialize")
        raise init_error(link, greeting.words)

    async def diagnosis(self, link: Link, phase: Phase, when: str) -> ServerError:
        """What a link that has ended died of."""
        end = await link.describe_end()
        what = f"{end.what} {when}"
        what = f"{what}; it said: {end.cause}" if end.cause else what
        return ServerError(
            self._of.key,
            phase,
            what if phase is Phase.RUNTIME else _with_stray(what, link),
            exit_code=end.exit_code,
            stderr_tail=link.stderr_tail,
            refuses_credentials=link.refuses_credentials,
        )


def as_server_error(server: str, error: Exception) -> ServerError:
    """Return what ended a server's life as a ServerError; a fault of our own is logged."""
    if isinstance(error, ServerError):
        return error
    log.exception("server %r: a fault of Junction's own", server, exc_info=error)
    return ServerError(server, Phase.RUNTIME, "an internal error of Junction")


def init_error(link: Link, message: str) -> ServerError:
    """What is wrong with a server that runs and is of no use."""
    return ServerError(
        link.server,
        Phase.INITIALIZATION,
        _with_stray(add_cause(message, link.stderr_tail), link),
        stderr_tail=link.stderr_tail,
        refuses_credentials=link.refuses_credentials,
    )


def _with_stray(what: str, link: Link) -> str:
    """Programs that are no servers, or called in a wrong way, often say so on stdout."""
    return (
        f"{what}; on stdout it wrote what is no MCP: {link.stray_output}"
        if link.stray_output
        else what
    )
