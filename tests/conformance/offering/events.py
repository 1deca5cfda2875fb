"""Stored events, so that a client of the handshake era can resume a stream it lost."""

import mcp_types as types
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore


class Events(EventStore):
    """Every event of every stream, for as long as the fixture lives; an id is a position."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send what came after; priming events (without a message) are not repeated."""
        if not last_event_id.isdecimal() or not 0 < int(last_event_id) <= len(self._events):
            return None
        last = int(last_event_id)
        stream, _ = self._events[last - 1]
        for position, (of, message) in enumerate(self._events[last:], last + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(position)))
        return stream
