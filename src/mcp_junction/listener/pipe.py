"""PipeClient: a stateless client on a single channel, such as our own stdin and stdout.

Its requests share nothing but their ids, by which the client cancels one: they are the keys of what
runs, in a dispatcher that no other client has. The dispatcher handles the methods.
"""

from __future__ import annotations

from typing import Final

from mcp_junction.calls.call import Channel
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.errors import FrameError
from mcp_junction.listener.replies import PipeReplies, Reply, refusal, unsupported
from mcp_junction.listener.stateless import StatelessDispatcher
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.requests import ClientRequest, read_cancellation
from mcp_junction.protocol.versions import INVALID_REQUEST
from mcp_junction.tasks import TaskScope

_MAX_ASKED: Final = 256
_MAX_STATE: Final = 8192


class PipeClient(PipeReplies):
    """A stateless client on a single channel, which all of its requests are answered on."""

    def __init__(
        self,
        dispatcher: StatelessDispatcher,
        principal: Principal,
        endpoint: Endpoint,
        channel: Channel,
        tasks: TaskScope,
    ) -> None:
        super().__init__(channel)
        self._dispatcher = dispatcher
        self._principal = principal
        self._endpoint = endpoint
        self._tasks = tasks
        self._running = dispatcher.running
        self._answer = dispatcher.answer
        self._asked: dict[bytes, bytes] = {}
        """The ``requestState`` of the latest requests that were answered with a question."""

    def receive(self, frame: Frame) -> None:
        """Handle one frame, and answer on the channel."""
        if type(frame) is ClientRequest:  # nearly all are
            frame_id: bytes = frame.id
        elif frame.id and frame.method:
            frame_id = frames.octets(frame.id)
        else:
            self._handle_notification(frame)
            return
        if frame_id in self._running:
            words = "a request with this id is still running"
            self.send(refusal(frame_id, INVALID_REQUEST, words).frame)
        elif frame.method == "initialize":
            self.send(unsupported(frame_id, _version(frame)).frame)
        else:
            rest = self._answer(self._principal, self._endpoint, frame, frame_id, frame_id, self)
            if rest is not None:
                self._tasks.run_pooled(rest)

    def end_with(self, frame_id: bytes, reply: Reply | None) -> None:
        if reply is not None and reply.state:
            self._remember_question(frame_id, reply.state)
        super().end_with(frame_id, reply)

    def _remember_question(self, frame_id: bytes, state: bytes) -> None:
        """Remember a request that was answered with a question: it can still be cancelled."""
        self._asked.pop(frame_id, None)
        if len(state) > _MAX_STATE:
            return  # a server's own, which we only sealed: nothing waits for it here
        if len(self._asked) >= _MAX_ASKED:
            del self._asked[next(iter(self._asked))]
        self._asked[frame_id] = state

    def _handle_notification(self, frame: Frame) -> None:
        """Handle a cancellation; anything else that needs no answer is ignored."""
        if frame.id or frame.method != "notifications/cancelled":
            return
        try:
            frame_id, reason = read_cancellation(frame)
        except FrameError:
            return
        running, state = (
            frames.find_by_id(self._running, frame_id),
            frames.find_by_id(self._asked, frame_id),
        )
        if running is not None:
            self._dispatcher.cancel(running, reason)
        elif state is not None:
            self._dispatcher.withdraw(state, reason)

    def close(self, reason: str) -> None:
        """End everything that runs."""
        self._dispatcher.end_disallowed(lambda _: False, reason)


def _version(frame: Frame) -> str:
    """Read the version that a client wants to open a session with, if there is one."""
    try:
        return frames.text(frame.members().get("protocolVersion")) or ""
    except FrameError:
        return ""
