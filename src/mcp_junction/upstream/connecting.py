"""Connector: connects to a server, and explains why that failed; Gate: where calls wait meanwhile.

It opens the link, waits for the first client, and greets the server. When to connect is decided by
the Upstream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import EraError, Phase, ServerError, circular_error
from mcp_junction.redaction.texts import redact_error
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import wait_for_any, wait_unless, wait_until_set
from mcp_junction.upstream.handshake import ConnectPolicy, Greeting, Hello
from mcp_junction.upstream.link import Link, add_cause, find_cause
from mcp_junction.upstream.negotiation import ServerQuirks

log = logging.getLogger("mcp_junction.upstream")

RECONNECT_WINDOW: Final = 10.0
MAX_WAITING: Final = 100


class Connector:
    """Makes the connections of one server, one after the other."""

    def __init__(
        self,
        policy: ConnectPolicy,
        hello: asyncio.Future[Hello],
        stop: asyncio.Event,
        quirks: ServerQuirks,
    ) -> None:
        self._policy = policy
        self._hello = hello
        self._stop = stop
        self._quirks = quirks

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[bool]:
        """Wait for one of the slots for servers being connected; False when it was stopped."""
        slots = self._policy.slots
        if slots is None:
            yield True
        elif await wait_unless(self._stop, slots.acquire()):
            try:
                yield True
            finally:
                slots.release()
        else:
            yield False

    async def open(self, server: str, opening: Awaitable[Link]) -> Link:
        """Open a link in time: starting the program may hang. Raises ServerError."""
        limit = self._policy.start_timeout
        try:
            return await asyncio.wait_for(opening, limit)
        except TimeoutError:
            message = f"was not started within {limit:g} s"
            raise ServerError(server, Phase.STARTUP, message) from None

    async def begin(self, link: Link, on_greeted: Callable[[Greeting], Awaitable[None]]) -> bool:
        """Greet the server and await ``on_greeted``; False when it was stopped meanwhile.

        Waits for the first client, so that the server gets the client's own capabilities. Raises
        ServerError, which says why the server failed.
        """
        if not self._hello.done():
            await wait_unless(self._stop, wait_for_any(self._hello, link.closed))
        if self._stop.is_set():
            return False
        if link.closed.done():
            raise await explain_end(link, Phase.STARTUP, "at once")
        return await wait_unless(self._stop, self._begin(link, self._hello.result(), on_greeted))

    async def _begin(
        self, link: Link, hello: Hello, on_greeted: Callable[[Greeting], Awaitable[None]]
    ) -> None:
        if hello.user is not None:
            link.users.note(hello.user)
        greeting = await self._greet(link, hello)
        try:
            await on_greeted(greeting)
        except ServerError as error:
            if link.closed.done():
                when = "before it had told what it offers"
                raise await explain_end(link, Phase.INITIALIZATION, when) from None
            raise init_error(link, error.message) from None

    async def _greet(self, link: Link, hello: Hello) -> Greeting:
        greeting = await self._quirks.greet(link, hello, self._policy)
        if isinstance(greeting, Greeting):
            if greeting.junction_id and greeting.junction_id == self._policy.junction_id:
                raise circular_error(link.server)
            return greeting
        if hello.only and greeting.of_era:
            raise EraError(link.server, Phase.INITIALIZATION, greeting.words)
        if link.closed.done():
            raise await explain_end(link, Phase.INITIALIZATION, "before it answered initialize")
        raise init_error(link, greeting.words)


class Gate:
    """Where calls wait for the link of one server, for a limited time and in limited number.

    They wait while a first connection is being made, while a server that has greeted us is asked
    for its lists, and in the first seconds after a healthy link was lost.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = asyncio.Event()
        self._down_since = clock.now()
        self._is_expected = False
        self.is_held = False
        """Whether the operator wants no more calls there, link or not."""
        self.waiting = 0
        """How many calls wait."""

    @property
    def down_for(self) -> float:
        """Seconds since the last link was lost, or since connecting began."""
        return self._clock.now() - self._down_since

    def begin(self) -> None:
        """Let calls wait for a first link."""
        self.is_held = False
        self._down_since = self._clock.now()

    def expect_link(self) -> None:
        """Let calls wait, however long it was down: its tools are listed before it is open."""
        self._is_expected = True

    def open(self) -> None:
        """Let waiting calls pass: there is a link."""
        self._open.set()

    def shut(self, *, was_open: bool) -> None:
        """Let calls wait again: the link, which calls could use if ``was_open``, has ended."""
        if was_open:
            self._down_since = self._clock.now()
        self._is_expected = False
        self._open.clear()

    def turn_away(self) -> None:
        """Let waiting calls go without a link."""
        self._open.set()
        self._open.clear()

    async def wait(self, limit: float, *, is_first: bool, is_restarted: bool) -> None:
        """Wait for the link: the first one, or, where it ``is_restarted``, another one."""
        is_coming = is_first or self._is_expected
        left = RECONNECT_WINDOW if is_coming else RECONNECT_WINDOW - self.down_for
        if not (is_coming or (is_restarted and left > 0)) or self.waiting >= MAX_WAITING:
            return
        self.waiting += 1
        try:
            await wait_until_set(self._open, min(left, limit or left))
        finally:
            self.waiting -= 1


async def explain_end(link: Link, phase: Phase, when: str) -> ServerError:
    """Make the error that says why a link has ended."""
    end = await link.describe_end()
    return _error(link, phase, add_cause(f"{end.what} {when}", end.cause), end.exit_code)


def init_error(link: Link, message: str) -> ServerError:
    """Make the error for a server that runs and cannot be used."""
    return _error(link, Phase.INITIALIZATION, add_cause(message, find_cause(link.stderr_tail)))


def _error(link: Link, phase: Phase, what: str, exit_code: int | None = None) -> ServerError:
    # A program that is not a server, or called in a wrong way, often says so on stdout.
    if phase is not Phase.RUNTIME and link.stray_output:
        what = f"{what}; on stdout it wrote what is no MCP: {link.stray_output}"
    return ServerError(
        link.server,
        phase,
        what,
        exit_code=exit_code,
        stderr_tail=link.stderr_tail,
        refuses_credentials=link.refuses_credentials,
    )


def report_failure(
    definition: ServerDefinition, error: Exception, before: ServerError | None
) -> ServerError:
    """Turn an exception into a ServerError without secrets, and log it unless it is known."""
    if not isinstance(error, ServerError):
        log.exception("server %r: a fault of Junction's own", definition.key, exc_info=error)
        error = ServerError(definition.key, Phase.RUNTIME, "an internal error of Junction")
    found = redact_error(error, definition)
    is_known = str(before) == str(found) or isinstance(error, EraError)
    log.log(logging.DEBUG if is_known else logging.ERROR, "%s", found.report)
    return found
