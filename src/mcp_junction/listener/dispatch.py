"""Dispatcher: what each method of a handshake-era client leads to.

Lists and greetings are answered inline; a routed request becomes a Call and gets one task. It is
given frames and a session; which wire they came on it does not know.
"""

from __future__ import annotations

from collections.abc import Callable

from mcp_junction.calls.call import Call
from mcp_junction.errors import CursorError, FrameError
from mcp_junction.listener.backend import Backend
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import spelling_for
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    negotiate,
)
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.outcome import Kind

_UNANSWERABLE = b"null"


class Dispatcher:
    """Takes a client's frames, one at a time."""

    def __init__(self, backend: Backend, tasks: TaskScope) -> None:
        self._backend = backend
        self._tasks = tasks
        self._requests: dict[str, Callable[[Session, bytes, Frame], None]] = {
            "tools/call": self._call_tool,
            "tools/list": self._list_tools,
            "ping": self._ping,
            "initialize": self._initialize,
            "logging/setLevel": self._set_level,
        }
        self._notifications: dict[str, Callable[[Session, Frame], None]] = {
            "notifications/cancelled": self._cancelled,
            "notifications/roots/list_changed": self._roots_changed,
        }

    def receive(self, session: Session, frame: Frame) -> None:
        """Take one frame. Whatever is wrong with it is answered, never raised."""
        if not frame.method:
            session.answered(frame)
            return
        if not frame.id:
            self._notified(session, frame)
            return
        frame_id = bytes(frame.id)
        handler = self._requests.get(frame.method)
        if handler is None:
            self._refuse(session, frame_id, METHOD_NOT_FOUND, f"no method {frame.method[:100]!r}")
        elif not session.is_open and frame.method not in ("initialize", "ping"):
            self._refuse(session, frame_id, INVALID_REQUEST, "send initialize first")
        else:
            try:
                handler(session, frame_id, frame)
            except FrameError as error:
                self._refuse(session, frame_id, INVALID_PARAMS, f"{frame.method}: {error}")

    def refused(self, session: Session, error: FrameError) -> None:
        """Answer bytes that were no frame."""
        self._refuse(session, error.frame_id or _UNANSWERABLE, error.code, error.message)

    def _refuse(self, session: Session, frame_id: bytes, code: int, message: str) -> None:
        session.send(encode.error(frame_id, encode.error_object(code, message)))

    # -- opening

    def _initialize(self, session: Session, frame_id: bytes, frame: Frame) -> None:
        params = frames.members_once(frame.params)
        wanted = frames.text(params.get("protocolVersion"))
        if wanted is None:
            raise FrameError(INVALID_PARAMS, "protocolVersion is missing")
        info = frames.members(params.get("clientInfo") or b"{}")
        settings = self._backend.settings
        session.client = frames.text(info.get("name")) or ""
        session.capabilities = {
            key: raw.copy()
            for key, raw in frames.members(params.get("capabilities") or b"{}").items()
        }
        session.protocol_version = negotiate(wanted)
        if settings.separator is None:
            session.spelling = spelling_for(session.client, session.spelling)
        self._backend.introduced(session)
        answer = {
            "protocolVersion": session.protocol_version,
            "capabilities": {"tools": {"listChanged": True}, "logging": {}},
            "serverInfo": {"name": settings.name, "version": settings.version},
        }
        session.send(encode.result(frame_id, encode.dumps(answer)))

    def _ping(self, session: Session, frame_id: bytes, frame: Frame) -> None:
        session.send(encode.result(frame_id, b"{}"))

    # -- tools

    def _list_tools(self, session: Session, frame_id: bytes, frame: Frame) -> None:
        params = frames.members_once(frame.params)
        cursor = frames.text(params.get("cursor"))
        if self._backend.is_settled or session.listed is not None:
            self._send_tools(session, frame_id, cursor)
        else:
            self._tasks.spawn(self._list_when_settled(session, frame_id, cursor))

    async def _list_when_settled(
        self, session: Session, frame_id: bytes, cursor: str | None
    ) -> None:
        await self._backend.settled()
        self._send_tools(session, frame_id, cursor)

    def _send_tools(self, session: Session, frame_id: bytes, cursor: str | None) -> None:
        catalog = self._backend.snapshot.catalog
        view = catalog.view(session.spelling)
        try:
            page = view.tools.page(cursor)
        except CursorError as error:
            self._refuse(session, frame_id, INVALID_PARAMS, str(error))
            return
        if cursor is None:
            session.listed = catalog.generation
        session.send(encode.result(frame_id, page))

    def _call_tool(self, session: Session, frame_id: bytes, frame: Frame) -> None:
        params = frames.members_once(frame.params)
        name = frames.text(params.get("name"))
        if name is None:
            raise FrameError(INVALID_PARAMS, "name is missing, or not a string")
        if frame_id in session.calls:
            raise FrameError(INVALID_REQUEST, "a request with this id is still running")
        call = Call(session, self._backend.snapshot, frame.method, name, params)
        session.calls[frame_id] = call
        self._tasks.spawn(self._run(session, frame_id, call))

    async def _run(self, session: Session, frame_id: bytes, call: Call) -> None:
        try:
            if not self._backend.is_settled:
                await self._settled_for(call)
            outcome = await call.snapshot.handle(call)
        finally:
            del session.calls[frame_id]
        if outcome.kind is not Kind.CANCELLED:
            session.send(outcome.frame(frame_id))

    async def _settled_for(self, call: Call) -> None:
        """A call that comes before its server is up is looked up when that is."""
        await self._backend.offered(call.name, call.caller.spelling)
        call.snapshot = self._backend.snapshot

    # -- logging

    def _set_level(self, session: Session, frame_id: bytes, frame: Frame) -> None:
        params = frames.members_once(frame.params)
        level = frames.text(params.get("level"))
        if level not in LOG_LEVELS:
            raise FrameError(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = LOG_LEVELS.index(level)
        self._tasks.spawn(self._backend.set_log_level(bytes(frame.params)))
        session.send(encode.result(frame_id, b"{}"))

    # -- notifications

    def _notified(self, session: Session, frame: Frame) -> None:
        handler = self._notifications.get(frame.method)
        if handler is not None and session.is_open:
            try:
                handler(session, frame)
            except FrameError:
                pass  # a notification has no answer

    def _cancelled(self, session: Session, frame: Frame) -> None:
        params = frames.members(frame.params)
        request_id = params.get("requestId")
        if request_id is not None:
            reason = frames.text(params.get("reason")) or "cancelled by the client"
            session.cancelled(bytes(request_id), reason)

    def _roots_changed(self, session: Session, frame: Frame) -> None:
        self._backend.to_servers(None, frame.method, frame.params)
