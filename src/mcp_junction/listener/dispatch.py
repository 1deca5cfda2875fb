"""Dispatcher: handles each method of a handshake client.

Lists and greetings are answered inline; a routed request becomes a Call, whose coroutine ends with
its answer. It takes frames and a session, of any transport; the answer goes to the request's
ReplyChannel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Call, Channel
from mcp_junction.calls.methods import HANDSHAKE_CALLS, NAMED, address
from mcp_junction.catalog.items import BY_LIST
from mcp_junction.errors import FrameError
from mcp_junction.listener.answers import ListenerHost, OwnAnswers, ReplyOrLater
from mcp_junction.listener.replies import (
    Accept,
    CollectedReply,
    Headers,
    Reply,
    ReplyChannel,
    Rest,
    finish,
    refusal,
    refuse_bytes,
    refuse_call,
    reply_to,
    take_over,
)
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.envelope import check_client_info, progress_token
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import spelling_for
from mcp_junction.protocol.requests import BatchPart, ClientRequest, read_cancellation
from mcp_junction.protocol.versions import (
    FIRST_WITH_LINKS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    choose_version,
)
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.outcome import RESULT

_Handler = Callable[[Session, bytes, Frame], ReplyOrLater]
_join: Final = b"".join  # ``frames.octets``, for the name of every call


class Dispatcher:
    """Answers the frames of handshake clients, one at a time."""

    def __init__(
        self, backend: ListenerHost, tasks: TaskScope, accept: Accept | None = None
    ) -> None:
        """``accept`` takes out what calls carry for us; without it, that is passed on."""
        self._backend = backend
        self._answers = OwnAnswers(backend)
        self._tasks = tasks
        self._accept = accept
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

    # -- messages

    def receive(self, session: Session, frame: Frame, reply: ReplyChannel) -> Rest:
        """Handle any message; a request is answered. Return what is left to do."""
        if frame.method and frame.id:
            return self.answer(session, frame, reply)
        self.take(session, frame)
        return None

    def take(self, session: Session, frame: Frame) -> None:
        """Handle a message that has no answer: a notification, or the client's own answer."""
        if not frame.method:
            session.take_answer(frame)
            return
        handler = self._notifications.get(frame.method)
        if handler is not None and session.is_open:
            try:
                handler(session, frame)
            except FrameError:
                pass  # it has no answer

    def answer(self, session: Session, frame: Frame, reply: ReplyChannel) -> Rest:
        """Answer a request, or what is wrong with it; return what is left to do."""
        frame_id = frame.id if type(frame) is ClientRequest else frames.octets(frame.id)
        try:
            if frame.method in HANDSHAKE_CALLS and session.protocol_version is not None:
                return self._begin_call(session, frame_id, frame, reply)
            found = self._answer_own(session, frame_id, frame)
        except FrameError as error:
            found = refusal(frame_id, INVALID_PARAMS, f"{frame.method}: {error}")
        return finish(reply, frame_id, found)

    def _answer_own(self, session: Session, frame_id: bytes, frame: Frame) -> ReplyOrLater:
        """Answer a request that goes to no server."""
        handler = self._requests.get(frame.method)
        if handler is None and frame.method not in HANDSHAKE_CALLS:
            # Also before the opening: clients of a later era find out by it how we open.
            return refusal(frame_id, METHOD_NOT_FOUND, f"no method {frame.method[:100]!r}")
        if handler is None or not (session.is_open or frame.method in ("initialize", "ping")):
            return refusal(frame_id, INVALID_REQUEST, "send initialize first")
        return handler(session, frame_id, frame)

    async def answer_batch(
        self,
        session: Session,
        parts: list[BatchPart],
        channel: Channel,
        headers: Headers | None = None,
    ) -> list[bytes]:
        """Answer every message of a batch; return the answers in the order of its requests.

        Calls go on side by side.
        """
        answers: list[CollectedReply] = []
        running = []
        for part in parts:
            reply = CollectedReply(channel, headers)
            answers.append(reply)
            if isinstance(part, FrameError):
                reply.answer = refuse_bytes(part)
                continue
            rest = self.receive(session, part, reply)
            if rest is not None:
                running.append(self._tasks.spawn(rest))
        for task in running:
            await task
        return [reply.answer for reply in answers if reply.answer is not None]

    # -- opening

    def _initialize(self, session: Session, frame_id: bytes, frame: Frame) -> ReplyOrLater:
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
        session.takes_links = session.protocol_version >= FIRST_WITH_LINKS
        if settings.separator is None:
            session.spelling = spelling_for(session.client, session.spelling)
        self._backend.note_client(session)
        return self._answers.initialize(session, frame_id)

    def _ping(self, session: Session, frame_id: bytes, frame: Frame) -> Reply:
        return Reply(encode.result(frame_id, b"{}"))

    def _list(self, session: Session, frame_id: bytes, frame: Frame) -> ReplyOrLater:
        return self._answers.list(session, frame_id, BY_LIST[frame.method], frame.members())

    # -- calls

    def _begin_call(
        self, session: Session, frame_id: bytes, frame: Frame, reply: ReplyChannel
    ) -> Rest:
        accept, carried = self._accept, NOTHING_CARRIED
        try:
            params = frame.known if type(frame) is ClientRequest else frame.members()
            if accept is not None and ("_meta" in params or reply.headers is not None):
                carried = accept(params, reply.headers)
            method, snapshot, token, route = frame.method, self._backend.snapshot, None, None
            if method in NAMED and "name" in params:
                spelling, scope, cache = session.spelling, session.scope, snapshot.route_cache
                found = cache.get((spelling, scope, method, _join((params["name"],))))
                if found is None:
                    found = cache.find(snapshot.catalog, spelling, scope, method, params)
                target, route = found.address, found.route
            else:
                target = address(method, params)
            if frame_id in session.calls:
                raise FrameError(INVALID_REQUEST, "a request with this id is still running")
            if "_meta" in params:
                token = progress_token(params)
        except FrameError as error:
            words, told = f"{frame.method}: {error}", None if accept is None else carried
            return refuse_call(reply, frame_id, INVALID_PARAMS, words, told)
        call = Call(session, snapshot, method, target, params, reply, token, route)
        if accept is not None:
            take_over(call, carried, self._backend.quotas, reply)
        session.calls[frame_id] = call
        return self._run_call(session, frame_id, call, reply)

    async def _run_call(
        self, session: Session, frame_id: bytes, call: Call, reply: ReplyChannel
    ) -> None:
        try:
            if not self._backend.is_settled:
                await self._backend.wait_for_offer(call)
            snapshot = self._backend.snapshot
            if snapshot is not call.snapshot:  # it may have come up since the call was read
                call.snapshot, call.route = snapshot, None
            outcome = await snapshot.handlers[call.method](call)
        finally:
            del session.calls[frame_id]
        if outcome.kind is RESULT:
            rest = reply.end(encode.result(frame_id, outcome.payload))
        else:
            rest = reply.end_with(frame_id, reply_to(frame_id, outcome, reply.correlation_id))
        if rest is not None:
            await rest

    # -- logging

    def _set_level(self, session: Session, frame_id: bytes, frame: Frame) -> Reply:
        params = frame.members()
        level = frames.text(params.get("level"))
        if level not in LOG_LEVELS:
            raise FrameError(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = LOG_LEVELS.index(level)
        self._tasks.spawn(self._backend.relay.update_log_levels())
        return Reply(encode.result(frame_id, b"{}"))

    # -- notifications

    def _cancelled(self, session: Session, frame: Frame) -> None:
        session.cancel_call(*read_cancellation(frame))

    def _roots_changed(self, session: Session, frame: Frame) -> None:
        params: Raw | bytes = frame.params
        if params and self._accept is not None:
            members = frame.members()
            self._accept(members, None)
            params = encode.dumps(members)
        if session.may_call:  # else it has nothing to tell servers
            self._backend.relay.notify_servers(session, frame.method, params)
