"""A whole Junction in the test's own process: several clients on it, and a look at its tasks."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.plugin_faults import Rig

from mcp_junction.app import Junction
from mcp_junction.config.load import load
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.replies import PipeReplies
from mcp_junction.protocol import requests
from mcp_junction.tasks import TaskScope

BOUND = 30.0


class Client:
    """One session; what it is sent is kept as it came."""

    def __init__(self, inside: "Inside") -> None:
        self.lines: list[bytes] = []
        self.session = inside.junction.open_session(self.take)
        self._dispatcher, self._calls = inside.dispatcher, inside.calls
        opening = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}}
        self.send("initialize", "opening", opening)

    def take(self, line: bytes) -> None:
        """Take a frame that the session is sent."""
        self.lines.append(line)

    def receive(self, data: bytes) -> None:
        """Give a frame to the gateway as a wire that does not split at line feeds would."""
        rest = self._dispatcher.receive(
            self.session, requests.decode(data), PipeReplies(self.session)
        )
        if rest is not None:
            self._calls.run_pooled(rest)

    def send(self, method: str, frame_id: Any, params: dict[str, Any]) -> None:
        frame = {"jsonrpc": "2.0", "method": method, "params": params}
        if frame_id is not None:
            frame["id"] = frame_id
        self.receive(json.dumps(frame).encode())

    def call(self, tool: str, frame_id: Any, **arguments: Any) -> None:
        self.send("tools/call", frame_id, {"name": tool, "arguments": arguments})

    def cancel(self, frame_id: Any) -> None:
        self.send("notifications/cancelled", None, {"requestId": frame_id})

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def answers(self, frame_id: Any) -> list[dict[str, Any]]:
        want = json.dumps(frame_id)
        return [f for f in self.frames if "method" not in f and json.dumps(f["id"]) == want]


class Inside:
    """A Junction, its dispatcher, and the scope of its calls."""

    def __init__(self, junction: Junction) -> None:
        self.junction = junction
        self.calls = TaskScope("calls")
        self.dispatcher = Dispatcher(junction, self.calls)

    def client(self) -> Client:
        return Client(self)

    async def settled(self) -> None:
        """Every call has ended."""
        await self.calls.settle(BOUND)
        assert len(self.calls) == 0

    def flights(self, key: str) -> int:
        """How many calls a server's link still knows."""
        return len(self.junction.servers[key].link.multiplexer)


@asynccontextmanager
async def inside(rig: Rig) -> AsyncIterator[Inside]:
    """The rig's config, served in this process; its servers are up."""
    async with Junction(load(str(rig.config()), {}, {})) as junction:
        within = Inside(junction)
        within.client()
        await junction.wait_until_settled()
        try:
            yield within
        finally:
            await within.calls.close()


async def until(condition: Any, what: str, seconds: float = BOUND) -> None:
    """Wait for a condition, at most so long."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what it looks at are files and processes
            await asyncio.sleep(0.002)
