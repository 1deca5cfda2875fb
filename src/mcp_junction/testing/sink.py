"""MemorySink: keeps the events it is given."""

from __future__ import annotations

from mcp_junction.telemetry.events import CallCompleted, Event, ServerChanged


class MemorySink:
    """A Sink with a memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def calls(self) -> list[CallCompleted]:
        return [event for event in self.events if isinstance(event, CallCompleted)]

    @property
    def changes(self) -> list[ServerChanged]:
        return [event for event in self.events if isinstance(event, ServerChanged)]
