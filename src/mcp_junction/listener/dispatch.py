"""Dispatcher: handles each method of a handshake client.

Lists and greetings are answered inline; a routed request becomes a Call and a coroutine that ends
with its answer. It takes frames, a session and the channel for the answer, of any transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from mcp_junction.calls.call import Call, Channel
from mcp_junction.calls.methods import HANDSHAKE_CALLS, address
from mcp_junction.catalog.items import BY_LIST, ListKind
from mcp_junction.errors import FrameError
from mcp_junction.listener.answers import OwnAnswers
from mcp_junction.listener.capabilities import CAPABILITIES
from mcp_junction.listener.host import ListenerHost
from mcp_junction.protocol import cycles, encode, frames
from mcp_junction.protocol.envelope import check_client_info, progress_token
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import spelling_for
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    choose_version,
)
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes

if TYPE_CHECKING:
    from mcp_junction.protocol.requests import BatchPart

Begun = bytes | asyncio.Task[bytes | None] | None
Answer = bytes | Coroutine[Any, Any, bytes | None] | None
_Handler = Callable[[Session, bytes, Frame], Answer]

_UNANSWERABLE = b"null"


class Dispatcher:
    """Answers the frames of handshake clients, one at a time."""

    def __init__(self, backend: ListenerHost, tasks: TaskScope) -> None:
        self._backend = backend
        self._answers = OwnAnswers(backend)
        self._tasks = tasks
        self._requests: dict[str, _Handler] = {
            "ping": self._ping,
            "initialize": self._initialize,
            "logging/setLevel": self._set_level,
            **dict.fromkeys(BY_LIST, self._list),
        }
        self._notifications: dict[str, Callable[[Session, Frame], None]] = {
            "notifications/cancelled": self._cancelled,
            "notifications/roots/list_changed": self._roots_changed,
        }

    def receive(self, session: Session, frame: Frame) -> None:
        """Handle one frame of a client with a single channel, and answer on it."""
        answer = self.answer(session, frame, session)
        if isinstance(answer, bytes):
            session.send(answer)
        elif answer is not None:
            self._tasks.run_pooled(self._send_later(session, answer))

    async def _send_later(
        self, session: Session, coming: Coroutine[Any, Any, bytes | None]
    ) -> None:
        answer = await coming
        if answer is not None:
            session.send(answer)

    def receive_batch(self, session: Session, parts: list[BatchPart]) -> None:
        """Handle a batch of a client with a single channel, and answer with a batch."""
        self._tasks.spawn(
            self._send_batch_later(session, self.begin_batch(session, parts, session))
        )

    async def _send_batch_later(self, session: Session, begun: list[Begun]) -> None:
        from mcp_junction.protocol.requests import join_answers

        answers = await self.collect_batch(begun)
        if answers:
            session.send(join_answers(answers))

    def begin_batch(
        self, session: Session, parts: list[BatchPart], channel: Channel
    ) -> list[Begun]:
        """Begin every message of a batch, in order; calls go on side by side."""
        return [self._begin(session, part, channel) for part in parts]

    def _begin(self, session: Session, part: BatchPart, channel: Channel) -> Begun:
        if isinstance(part, FrameError):
            return self.refuse(part)
        answer = self.answer(session, part, channel)
        return self._tasks.spawn(answer) if isinstance(answer, Coroutine) else answer

    async def collect_batch(self, begun: list[Begun]) -> list[bytes]:
        """Wait for all answers to a batch; return them in the order of its requests."""
        ended = [await each if isinstance(each, asyncio.Task) else each for each in begun]
        return [answer for answer in ended if answer is not None]

    def answer(self, session: Session, frame: Frame, channel: Channel) -> Answer:
        """Return the answer to a frame, or its coroutine; None where none is due.

        Whatever is wrong with the frame is answered, never raised.
        """
        if not frame.method:
            session.take_answer(frame)
            return None
        if not frame.id:
            self._handle_notification(session, frame)
            return None
        frame_id = frames.octets(frame.id)
        try:
            if frame.method in HANDSHAKE_CALLS and session.is_open:
                return self._begin_call(session, frame_id, frame, channel)
            return self._answer_own(session, frame_id, frame)
        except FrameError as error:
            return _refusal(frame_id, INVALID_PARAMS, f"{frame.method}: {error}")

    def refuse(self, error: FrameError) -> bytes:
        """Make the answer to bytes that are not a frame."""
        return _refusal(error.frame_id or _UNANSWERABLE, error.code, error.message)

    def _answer_own(self, session: Session, frame_id: bytes, frame: Frame) -> Answer:
        """Answer a request that goes to no server."""
        handler = self._requests.get(frame.method)
        if handler is None and frame.method not in HANDSHAKE_CALLS:
            # Also before the opening: clients of a later era find out by it how we open.
            return _refusal(frame_id, METHOD_NOT_FOUND, f"no method {frame.method[:100]!r}")
        if handler is None or not (session.is_open or frame.method in ("initialize", "ping")):
            return _refusal(frame_id, INVALID_REQUEST, "send initialize first")
        return handler(session, frame_id, frame)

    # -- opening

    def _initialize(self, session: Session, frame_id: bytes, frame: Frame) -> Answer:
        params = frame.members()
        wanted = frames.text(params.get("protocolVersion"))
        if wanted is None:
            raise FrameError(INVALID_PARAMS, "protocolVersion is missing")
        client, capabilities = params.get("clientInfo"), params.get("capabilities")
        check_client_info(client or b"", capabilities or b"")
        session.client_info = (client or Raw(b"{}")).copy()
        info = frames.members(session.client_info)
        settings = self._backend.settings
        session.client = frames.text(info.get("name")) or ""
        session.capabilities = {
            key: raw.copy() for key, raw in frames.members(capabilities or b"{}").items()
        }
        session.protocol_version = choose_version(wanted)
        if settings.separator is None:
            session.spelling = spelling_for(session.client, session.spelling)
        self._backend.note_client(session)
        if self._backend.summary.has_all_instructions:
            return self._answer_initialize(session, frame_id)
        return self._answer_initialize_later(session, frame_id)

    async def _answer_initialize_later(self, session: Session, frame_id: bytes) -> bytes:
        """Answer ``initialize`` after waiting for the instructions of servers that are starting."""
        await self._backend.summary.wait_for_instructions()
        return self._answer_initialize(session, frame_id)

    def _answer_initialize(self, session: Session, frame_id: bytes) -> bytes:
        """Make the answer to ``initialize``."""
        settings = self._backend.settings
        answer: dict[str, Any] = {
            "protocolVersion": session.protocol_version,
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": settings.name, "version": settings.version},
            "_meta": cycles.id_meta(self._backend.summary.junction_id),
        }
        answer = self._answers.with_instructions(session, answer)
        return encode.result(frame_id, encode.dumps(answer))

    def _ping(self, session: Session, frame_id: bytes, frame: Frame) -> bytes:
        return encode.result(frame_id, b"{}")

    # -- lists

    def _list(self, session: Session, frame_id: bytes, frame: Frame) -> Answer:
        kind, params = BY_LIST[frame.method], frame.members()
        try:
            cursor, meta = self._answers.cursor(params), params.get("_meta")
        except FrameError as error:
            return _refusal(frame_id, INVALID_PARAMS, error.message)
        if self._backend.is_settled or session.listed is not None:
            return self._page(session, frame_id, kind, cursor, meta)
        return self._page_when_settled(session, frame_id, kind, cursor, meta)

    async def _page_when_settled(
        self,
        session: Session,
        frame_id: bytes,
        kind: ListKind,
        cursor: str | None,
        meta: Raw | None,
    ) -> bytes:
        await self._backend.wait_until_settled()
        return self._page(session, frame_id, kind, cursor, meta)

    def _page(
        self,
        session: Session,
        frame_id: bytes,
        kind: ListKind,
        cursor: str | None,
        meta: Raw | None,
    ) -> bytes:
        try:
            page, reachable = self._answers.page(session, kind, cursor, meta)
        except FrameError as error:
            return _refusal(frame_id, INVALID_PARAMS, error.message)
        if cursor is None:
            generation = self._backend.snapshot.generation
            session.listed = {**(session.listed or {}), kind.changed: generation}
        if reachable:
            return encode.compact_result_with(frame_id, page, b',"_meta":{%b}}' % reachable)
        return encode.compact_result(frame_id, page)

    # -- calls

    def _begin_call(
        self, session: Session, frame_id: bytes, frame: Frame, channel: Channel
    ) -> Answer:
        params = frame.members()
        target = address(frame.method, params)
        if frame_id in session.calls:
            raise FrameError(INVALID_REQUEST, "a request with this id is still running")
        token = progress_token(params)
        call = Call(session, self._backend.snapshot, frame.method, target, params, channel, token)
        session.calls[frame_id] = call
        return self._run_call(session, frame_id, call)

    async def _run_call(self, session: Session, frame_id: bytes, call: Call) -> bytes | None:
        try:
            if not self._backend.is_settled:
                await self._backend.wait_for_offer(call)
            call.snapshot = self._backend.snapshot  # it may have come up since the call was read
            outcome = await call.snapshot.handle(call)
        finally:
            del session.calls[frame_id]
        if outcome.kind is outcomes.CANCELLED:
            return None
        return outcome.frame(frame_id)

    # -- logging

    def _set_level(self, session: Session, frame_id: bytes, frame: Frame) -> bytes:
        params = frame.members()
        level = frames.text(params.get("level"))
        if level not in LOG_LEVELS:
            raise FrameError(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = LOG_LEVELS.index(level)
        self._tasks.spawn(self._backend.relay.update_log_levels())
        return encode.result(frame_id, b"{}")

    # -- notifications

    def _handle_notification(self, session: Session, frame: Frame) -> None:
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
            session.cancel_call(bytes(request_id), reason)

    def _roots_changed(self, session: Session, frame: Frame) -> None:
        if session.may_call:  # else it has nothing to tell servers
            self._backend.relay.notify_servers(session, frame.method, frame.params)


def _refusal(frame_id: bytes, code: int, message: str) -> bytes:
    return encode.error(frame_id, encode.error_object(code, message))
