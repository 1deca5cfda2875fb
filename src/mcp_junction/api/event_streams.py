"""EventStreams: sends bus events to REST clients as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from mcp_junction.api.models import format_time
from mcp_junction.policy.principal import Principal, Right, Role, has_right
from mcp_junction.policy.quotas import Closable, Quotas
from mcp_junction.store.events import Events
from mcp_junction.store.records import EventRecord
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus, make_gap_event
from mcp_junction.telemetry.events import CALL_COMPLETED, OutcomeName

KEEPALIVE: Final = 15.0
"""Seconds without an event after which a comment is sent."""
_QUEUED: Final = 256
_PAGE: Final = 1_000
_OPENING: Final = b": these are the events of Junction\nretry: 1000\n\n"
_DENIED: Final = OutcomeName.DENIED.value
_STILL: Final = b": still here\n\n"


class EventStreams:
    """All open event streams."""

    def __init__(
        self,
        bus: Bus,
        events: Events,
        tasks: TaskScope,
        is_allowed: Callable[[Principal], bool],
        quotas: Quotas,
    ) -> None:
        self._bus = bus
        self._events = events
        self._tasks = tasks
        self._is_allowed = is_allowed
        self._quotas = quotas
        self._open: dict[asyncio.Queue[bytes | None], Principal] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def open(
        self, principal: Principal, after: int | None, types: frozenset[str], *, follow: bool
    ) -> AsyncIterator[bytes]:
        """Open a stream and iterate over its bytes. Raises StoreUnavailable.

        Who may not read all events reads those of its own calls: they are not stored, so there is
        nothing to resume, and nothing of it tells how many other events there are.
        """
        first, last = await self._events.bounds()
        if not has_right(principal, Right.READ_EVENTS):
            after = last
        if not follow:
            return self._replay(last if after is None else after, first, last, types)
        return self._follow(principal, last if after is None else after, types)

    def end(self, is_allowed: Callable[[Principal], bool]) -> None:
        """End the streams of principals that are no longer allowed."""
        for queue, principal in list(self._open.items()):
            if not is_allowed(principal):
                _end(queue)

    async def _replay(
        self, after: int, first: int, last: int, types: frozenset[str]
    ) -> AsyncIterator[bytes]:
        """Send the stored events up to ``last``, then end."""
        yield _OPENING
        if after + 1 < first:
            yield _encode_event(make_gap_event(after, first))
        while after < last:
            found = await self._events.after(after, limit=_PAGE, types=types)
            for record in found:
                if record.seq <= last:
                    yield _encode_event(record)
            if len(found) < _PAGE:
                return
            after = found[-1].seq

    async def _follow(
        self, principal: Principal, after: int, types: frozenset[str]
    ) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED)
        pump = self._tasks.spawn(self._pump(principal, queue, after, types))
        self._open[queue] = principal
        self.end(self._is_allowed)  # a key may have been revoked while we asked the store
        usage, counted = self._quotas.of(principal), _FollowerStream(queue)
        usage.open_stream(counted)
        try:
            yield _OPENING
            while (data := await _next_or_keepalive(queue)) is not None:
                yield data
        finally:
            usage.streams.discard(counted)
            del self._open[queue]
            pump.cancel()

    async def _pump(
        self,
        principal: Principal,
        queue: asyncio.Queue[bytes | None],
        after: int,
        types: frozenset[str],
    ) -> None:
        reads_all = has_right(principal, Right.READ_EVENTS)
        try:
            async for record in self._bus.subscribe(after, types):
                if reads_all or is_of_own_call(record, principal):
                    await queue.put(_encode_event(record))
        finally:
            _end(queue)  # it can be taken up where it was


def is_of_own_call(record: EventRecord, agent: Principal) -> bool:
    """Whether an event is about a call of this agent's own.

    Of what others call in its name, that is what its grants allowed: a denial would show it what
    is hidden. Somebody of another role may have the same id.
    """
    data = record.data
    if record.type != CALL_COMPLETED or data.get("agent") != agent.id:
        return False
    if data.get("role") == Role.AGENT:
        return data.get("principal") == agent.id
    is_named = data.get("principal") != agent.id
    return is_named and data.get("server_id") is not None and data.get("outcome") != _DENIED


class _FollowerStream(Closable):
    """One response of ``/api/v1/events``, counted in the quota of its principal."""

    __slots__ = ("_queue",)

    def __init__(self, queue: asyncio.Queue[bytes | None]) -> None:
        self._queue = queue

    def cut(self) -> None:
        _end(self._queue)


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    """Drop what a queue holds, and end its reader."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)


async def _next_or_keepalive(queue: asyncio.Queue[bytes | None]) -> bytes | None:
    """Wait for the next event; a comment when none comes in time."""
    try:
        async with asyncio.timeout(KEEPALIVE):
            return await queue.get()
    except TimeoutError:
        return _STILL


def _encode_event(record: EventRecord) -> bytes:
    """Encode an event. One that is not stored has no id to resume from."""
    data = {
        "id": record.seq or None,
        "type": record.type,
        "at": format_time(record.at),
        "subject": record.subject,
        "data": record.data,
    }
    number = b"id: %d\n" % record.seq if record.seq else b""
    kind = record.type.replace("\r", "").replace("\n", "").encode()
    return b"%bevent: %b\ndata: %b\n\n" % (number, kind, msgspec.json.encode(data))
