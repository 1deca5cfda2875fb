"""A head that was read before is not read again, and nobody can tell."""

import asyncio
import itertools
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from mcp_junction.listener.http.server import protocol_for
from mcp_junction.tasks import TaskScope

HEAD = b"POST /mcp HTTP/1.1\r\nhost: x\r\nAuthorization: Bearer k\r\nContent-Length: %d\r\n\r\n"
EARLY = b"POST /mcp HTTP/1.1\r\nContent-Length: %d\r\nhost: x\r\n\r\n"


class Transport(asyncio.Transport):
    """Takes what is written; nothing is on the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


class Connection:
    """A connection whose app notes what it is asked; ``knows`` says whether heads are kept."""

    def __init__(self, *, knows: bool = True, most: int = 1000) -> None:
        self.asked: list[tuple[Any, bytes]] = []
        self.tasks = TaskScope("test")
        self.read = 0
        connection = self

        class Counting(protocol_for(self.tasks, most)):
            def on_message_begin(self) -> None:
                connection.read += 1
                super().on_message_begin()

            def _remember(self, data: bytes) -> None:
                if knows:  # else every head is read
                    super()._remember(data)

        config = uvicorn.Config(
            self._app, interface="asgi3", proxy_headers=False, log_config=None, lifespan="off"
        )
        config.load()
        self.protocol = Counting(config, ServerState(), {}, asyncio.get_running_loop())
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        shown = {name: value for name, value in scope.items() if name != "exchange"}
        self.asked.append((shown, (await receive())["body"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def gets(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.closing:
                self.protocol.data_received(piece)
            await self.tasks.settle(5)
            while len(self.tasks):  # one request may be the end of waiting for the next
                await self.tasks.settle(5)

    async def close(self) -> None:
        self.protocol.connection_lost(None)
        await self.tasks.close()


@pytest.fixture
async def connect():
    made = []

    def connection(**given: Any) -> Connection:
        made.append(Connection(**given))
        return made[-1]

    yield connection
    for each in made:
        await each.close()


def post(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


async def test_requests_with_one_head_are_read_once_whatever_their_length(connect):
    one = connect()
    bodies = [b"{}", b"{}", b'{"a":1}', b"", b"x" * 1000]
    await one.gets(*map(post, bodies))
    assert [body for _, body in one.asked] == bodies
    assert one.read == 1
    scopes = [scope for scope, _ in one.asked]
    assert all(scope["path"] == "/mcp" and scope["method"] == "POST" for scope in scopes)
    assert all(dict(scope["headers"])[b"authorization"] == b"Bearer k" for scope in scopes)
    assert one.transport.written.count(b"HTTP/1.1 204") == len(bodies)


PIECES = st.sampled_from(
    [
        post(b"{}"),
        post(b'{"a":1}'),
        post(b"x" * 20),  # over the limit
        post(b"{}", EARLY),
        post(b'{"a":1}', EARLY),
        post(b'{"a":1}', EARLY.replace(b"host: x", b"host: y")),
        EARLY % 2 + b"{",
        EARLY % 2 + b"{}" + EARLY % 2 + b"{}",
        EARLY.replace(b"%d", b"2x") + b"{}",
        post(b"{}", HEAD.replace(b"Bearer k", b"Bearer l")),
        post(b"{}", HEAD.replace(b"host: x", b"host: x\r\nContent-Length: 2")),
        post(b"{}", HEAD.replace(b"host: x", b"host: x\r\nConnection: keep-alive")),
        post(b"{}", HEAD.replace(b"host: x", b"host: x\r\nConnection: close")),
        post(b"{}", HEAD.replace(b"host: x", b"host: x\r\nExpect: 100-continue")),
        post(b"{}", HEAD.replace(b"host: x", b"host: x\r\nUpgrade: h2c\r\nConnection: upgrade")),
        post(b"{}", HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")),
        post(b"{}", HEAD.replace(b"\r\nhost", b"\nhost")),
        b"POST / HTTP/1.1\nhost: x\nContent-Length: 40\n\n..\r\nContent-Length: 2\r\n\r\n{}"
        + b"." * 16,
        b"POST /mcp HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"GET /mcp HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\r\n",
        b"garbage\r\n\r\n",
    ]
)


@given(st.lists(PIECES, min_size=1, max_size=8), st.data())
async def test_what_the_app_sees_does_not_depend_on_what_was_seen_before(requests, data):
    """However the bytes are cut into pieces."""
    stream = b"".join(requests)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
    whole = data.draw(st.booleans())
    ends = sorted({0, len(stream), *cuts})
    pieces = requests if whole else [stream[a:b] for a, b in itertools.pairwise(ends)]
    seen = []
    for knows in (True, False):
        one = Connection(knows=knows, most=10)
        await one.gets(*pieces)
        seen.append((one.asked, one.transport.written, one.transport.closing))
        await one.close()
    assert seen[0] == seen[1]
