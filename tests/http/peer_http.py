"""The peer over HTTP: streamable, and the older HTTP+SSE. On the test's own loop, in its hands."""

import asyncio
import itertools
import json
from typing import Any

from tests.http.origin import Origin, Visit
from tests.http.peer import Conversation, Message


class HttpPeer(Origin):
    """Streamable HTTP. What belongs to a call goes on the call's stream, the rest on the GET's."""

    def __init__(
        self, *, always_stream: bool = False, sessions: bool = True, **options: Any
    ) -> None:
        super().__init__(self._answer)
        self.sessions: dict[str, Session] = {}
        self.down = False
        self._always_stream = always_stream
        self._with_sessions = sessions
        self._options = options
        self._ids = itertools.count(1)

    @property
    def session(self) -> "Session":
        """The newest session."""
        return list(self.sessions.values())[-1]

    async def _answer(self, visit: Visit) -> None:
        session_id = visit.headers.get("mcp-session-id", "")
        if visit.rpc == "initialize":
            session_id = f"s{next(self._ids)}" if self._with_sessions else ""
            self.sessions[session_id] = Session(session_id, self._always_stream, self._options)
        session = self.sessions.get(session_id)
        if session is None:
            visit.answer(404)
        elif visit.method == "DELETE":
            session.close()
            del self.sessions[session_id]
            visit.answer(200)
        elif visit.method == "GET":
            await session.listen(visit)
        elif "id" in visit.message and visit.rpc:
            await session.called(visit)
        else:
            session.conversation.receive(visit.message)
            visit.accepted()

    def forget(self) -> None:
        """Forget every session, as a server does that was started anew."""
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()

    async def close(self) -> None:
        self.forget()
        await super().close()


class Session:
    """One session: a conversation, the calls that are open and the standing stream."""

    def __init__(self, session_id: str, always_stream: bool, options: Message) -> None:
        self.id = session_id
        self.conversation = Conversation(self._say, {}, **options)
        self.standing: Visit | None = None
        self.unheard: list[Message] = []
        self._always_stream = always_stream
        self._calls: dict[Any, Visit] = {}
        self._streams: set[Any] = set()
        self._ended: dict[Any, asyncio.Event] = {}

    def close(self) -> None:
        self.conversation.close()
        if self.standing is not None:
            self.standing.hang_up()

    async def called(self, visit: Visit) -> None:
        call = visit.message["id"]
        self._calls[call] = visit
        self.conversation.context = visit.headers
        if self._always_stream:
            self._begin(call)
        self.conversation.receive(visit.message)

    async def listen(self, visit: Visit) -> None:
        visit.stream()
        self.standing = visit
        for message in self.unheard:
            visit.event(message)
        self.unheard.clear()

    def _begin(self, call: Any) -> None:
        if call not in self._streams:
            self._streams.add(call)
            self._calls[call].stream(f"mcp-session-id: {self.id}")

    def _say(self, message: Message, on: Any) -> None:
        if on is None or on not in self._calls:
            if self.standing is None or self.standing.gone.is_set():
                self.unheard.append(message)
            else:
                self.standing.event(message)
        elif "method" in message:
            self._begin(on)
            self._calls[on].event(message)
        else:
            self._finish(message, on)

    def _finish(self, message: Message, call: Any) -> None:
        visit = self._calls.pop(call)
        if call in self._streams:
            self._streams.discard(call)
            visit.event(message)
            visit.end()
        else:
            visit.json(message, mcp_session_id=self.id) if self.id else visit.json(message)


class SsePeer(Origin):
    """The older transport: one stream for all the server says, an address to post to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(self._answer)
        self.conversations: dict[str, Conversation] = {}
        self.streams: dict[str, Visit] = {}
        self._options = options
        self._ids = itertools.count(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sse"

    @property
    def conversation(self) -> Conversation:
        return list(self.conversations.values())[-1]

    async def _answer(self, visit: Visit) -> None:
        key = visit.path.partition("?")[2]
        if visit.method == "GET":
            self._open(visit)
        elif visit.path == "/sse" or key not in self.conversations:
            visit.answer(404 if key else 405)
        else:
            visit.accepted()
            self.conversations[key].receive(visit.message)

    def _open(self, visit: Visit) -> None:
        key = f"c{next(self._ids)}"

        def say(message: Message, _: Any) -> None:
            if not visit.gone.is_set():
                visit.chunk(b"event: message\r\ndata: %b\r\n\r\n" % json.dumps(message).encode())

        self.streams[key] = visit
        self.conversations[key] = Conversation(say, {}, **self._options)
        visit.stream()
        visit.chunk(b"event: endpoint\r\ndata: /messages?%b\r\n\r\n" % key.encode())

    async def close(self) -> None:
        for conversation in self.conversations.values():
            conversation.close()
        await super().close()
