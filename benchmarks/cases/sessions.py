"""Many sessions over HTTP: what our program holds for each, and that all of them live."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import procs
from budgets import AtMost, Figure
from client import HttpSession, McpError
from registry import case
from targets import HttpTarget, Lab, server

IDLE, STREAMING = "RSS per idle session", "RSS per session with a stream"
WIDTH = 64  # connections being opened at once
WARM = 500  # sessions before anything counts
PINGED = 100
SPARE_FILES = 500  # of the limit, for what is neither a client nor a stream
SETTLE_SECONDS = 10

T, R = TypeVar("T"), TypeVar("R")


class Stream(asyncio.Protocol):
    """A GET whose answer does not end: the stream of a session, held open."""

    def __init__(self, request: bytes) -> None:
        self.request, self.head = request, b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        self.head += data
        head, end, _ = self.head.partition(b"\r\n\r\n")
        if end and head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head:
            self.opened.set_result(None)
        elif end:
            self.opened.set_exception(McpError(f"no stream: {self.head[:200]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.opened.done():
            self.opened.set_exception(McpError(f"connection lost {exc or ''}"))


async def open_idle(target: HttpTarget) -> HttpSession:
    """A session that was opened and whose connection is gone."""
    session = target.new_client()
    await session.open()
    session.http.close()
    return session


async def open_stream(session: HttpSession) -> Stream:
    where = session.http
    request = session.prefix.replace(b"POST ", b"GET ", 1) + b"\r\n"
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(request), where.host, where.port)
    await stream.opened
    return stream


async def ping(session: HttpSession) -> None:
    await session.request("ping", {})
    session.http.close()


async def for_all(items: Iterable[T], act: Callable[[T], Awaitable[R]]) -> list[R]:
    """`act` on every item, `WIDTH` at a time; its answers in no order."""
    left, answers = iter(items), []

    async def worker() -> None:
        for item in left:
            answers.append(await act(item))

    async with asyncio.TaskGroup() as group:
        for _ in range(WIDTH):
            group.create_task(worker())
    return answers


async def settled_rss(target: HttpTarget) -> int:
    """KiB resident once it has stopped changing: closed connections take a moment to go."""
    last = procs.rss_kib(target.pid)
    for _ in range(SETTLE_SECONDS):
        await asyncio.sleep(1)
        now = procs.rss_kib(target.pid)
        if abs(now - last) <= 64:
            return now
        last = now
    return last


async def warm_up(target: HttpTarget) -> None:
    """What is loaded or kept from the first sessions on is not part of what each one costs.

    These stay: the room of ended ones would be given to those that count.
    """
    sessions = await for_all(range(WARM), lambda _: open_idle(target))
    (await open_stream(sessions[0])).transport.abort()
    await ping(sessions[0])


async def held(sessions: list[HttpSession], target: HttpTarget) -> int:
    """KiB resident while every session has its stream; all must live, a sample must answer."""
    streams: list[Stream] = []

    async def hold(session: HttpSession) -> None:
        streams.append(await open_stream(session))

    try:
        await for_all(sessions, hold)
        size = await settled_rss(target)
        await for_all(sessions[:: max(len(sessions) // PINGED, 1)], ping)
        if lost := sum(stream.lost for stream in streams):
            raise McpError(f"{lost} of {len(streams)} streams were lost")
    finally:
        for stream in streams:
            stream.transport.abort()
    return size


@case("sessions-10k", budget={IDLE: AtMost(6), STREAMING: AtMost(20)}, front="http")
async def sessions_10k(lab: Lab) -> list[Figure]:
    """10,000 sessions, first idle, then each with its stream held open."""
    wanted = 1_000 if lab.quick else 10_000
    limit = procs.raise_file_limit()  # ours inherits it
    count = min(wanted, limit - SPARE_FILES)
    up = {"up": server("upstream.py", "--stdio")}
    # All of them are one agent's, which would be given 2,000 streams.
    no_limit = {"max_sessions_per_principal": 0, "max_streams_per_principal": 0}
    target = await lab.serve("ours", up, **no_limit).open()
    await warm_up(target)
    base = await settled_rss(target)
    sessions = await for_all(range(count), lambda _: open_idle(target))
    idle = await settled_rss(target)
    streaming = await held(sessions, target)
    note = f"{count:,} sessions on {base / 1024:.0f} MiB"
    if count < wanted:
        note += f", not {wanted:,}: only {limit:,} files may be open"
    return [
        Figure(IDLE, (idle - base) / count, "KiB", note=note),
        Figure(
            STREAMING,
            (streaming - base) / count,
            "KiB",
            note=f"all held at once, {PINGED} of them asked",
        ),
    ]
