"""An Exchange with a server that is the test: what was written to it, and what it says."""

import json
from typing import Any

from msgspec import Raw

from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.protocol.frames import Frame
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, FlightState, new_flight
from mcp_junction.upstream.multiplexer import Multiplexer
from mcp_junction.upstream.outcome import Outcome


class Listening:
    """An Ear, and a Passenger: keeps what it hears, answers what it is asked."""

    def __init__(
        self, name: str = "ear", session: object = None, principal: Principal = LOCAL_OWNER
    ) -> None:
        self.name = name
        self.principal = principal
        self.unattributed_methods: list[str] = []
        self.session = self if session is None else session
        self.heard_frames: list[Frame] = []
        self.reports: list[dict[str, Any]] = []
        self.questions: list[str] = []
        self.logs: list[Any] = []

    def on_notification(self, frame: Frame) -> None:
        self.heard_frames.append(frame)

    async def on_request(self, frame: Frame) -> Outcome:
        return await self.ask(frame.method, frame.params)

    def on_unattributed(self, method: str) -> None:
        self.unattributed_methods.append(method)

    def progress(self, params: dict[str, Raw]) -> None:
        self.reports.append({key: json.loads(bytes(raw)) for key, raw in params.items()})

    def log(self, params: Raw) -> None:
        self.logs.append(json.loads(bytes(params)))

    async def ask(self, method: str, params: Raw) -> Outcome:
        self.questions.append(method)
        return outcomes.result(json.dumps({"answered by": self.name}).encode())


class Dialogue:
    """The two ends of one link."""

    def __init__(self) -> None:
        self.wire: list[bytes] = []
        self.ear = Listening()
        self.multiplexer = Multiplexer("s", self.wire.append, self.ear)

    def fly(self, method: str = "tools/call", caller: Listening | None = None) -> Flight:
        flight = new_flight(method, caller)
        flight.params = b"{}"
        flight.state = FlightState.WRITTEN
        self.wire.append(self.multiplexer.encode_request(flight))
        return flight

    def hear(self, line: bytes) -> None:
        """The server says this."""
        self.multiplexer.receive(line)

    def answer(self, flight: Flight, result: bytes = b"{}") -> None:
        self.hear(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (flight.wire_id, result))

    def written(self) -> list[dict[str, Any]]:
        """What has been written to the server since the last time."""
        frames = [json.loads(line) for line in self.wire]
        self.wire.clear()
        return frames


def failure(flight: Flight) -> dict[str, Any]:
    """The error a flight has ended with."""
    error: dict[str, Any] = json.loads(bytes(flight.future.result().payload))
    return error
