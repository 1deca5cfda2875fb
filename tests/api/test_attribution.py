"""What a server says without a call's id never shows one principal what is another's.

Each server here repeats, in every kind of message that names no call, all that it was ever sent.
It is made to do so by a request of Junction's own, before, during and after the calls of two
principals who come by REST, as stateless clients or in sessions.
"""

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.http.fronts import EVERYTHING, HttpFront
from tests.plugin_rest import BOUND, CALL, Served

from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    LATEST_STATELESS,
    LOG_LEVEL_KEY,
    VERSION_KEY,
)

pytestmark = pytest.mark.req("S-12", "R-ATTRIBUTE")

META = {
    VERSION_KEY: LATEST_STATELESS,
    CAPABILITIES_KEY: EVERYTHING,
    LOG_LEVEL_KEY: "debug",
}
UPDATED = "notifications/resources/updated"


class Somebody:
    """A principal by one of the fronts; keeps every byte that reaches it."""

    def __init__(self, served: Served, role: str) -> None:
        self.served = served
        self.secret = f"secret-of-{role}"
        self.role = role
        self.tasks: list[asyncio.Task[None]] = []
        self.received: list[str] = []

    async def arrive(self) -> None:
        """Be there without using the server."""

    async def call(self, tool: str) -> None:
        raise NotImplementedError

    async def use(self) -> None:
        """Use the server, and leave something with it."""
        await self.call("peer.echo")

    def begin(self) -> None:
        """Begin a call that lasts."""
        self.tasks.append(asyncio.create_task(self.call("peer.hold")))

    def text(self) -> str:
        return "\n".join(self.received)

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class ByRest(Somebody):
    async def call(self, tool: str) -> None:
        body = {"name": tool, "arguments": {"secret": self.secret} if "echo" in tool else {}}
        self.received.append((await self.served.client(self.role).post(CALL, json=body)).text)


class ByRequests(Somebody):
    """A stateless client that also listens."""

    async def arrive(self) -> None:
        wanted = {"toolsListChanged": True, "resourcesListChanged": True}
        opened = asyncio.get_running_loop().create_future()
        self.tasks.append(asyncio.create_task(self._listen(wanted, opened)))
        await asyncio.wait_for(opened, BOUND)

    async def use(self) -> None:
        await super().use()
        opened = asyncio.get_running_loop().create_future()
        wanted = {"resourceSubscriptions": ["note://1"]}
        self.tasks.append(asyncio.create_task(self._listen(wanted, opened)))
        await asyncio.wait_for(opened, BOUND)

    async def _listen(self, wanted: Any, opened: Any) -> None:
        async with self._stream("subscriptions/listen", {"notifications": wanted}) as answer:
            async for line in answer.aiter_lines():
                self.received.append(line)
                if "acknowledged" in line and not opened.done():
                    opened.set_result(None)

    async def call(self, tool: str) -> None:
        arguments = {"secret": self.secret} if "echo" in tool else {}
        params = {"name": tool, "arguments": arguments}
        async with self._stream("tools/call", params, mcp_name=tool) as answer:
            async for line in answer.aiter_lines():
                self.received.append(line)

    def _stream(self, method: str, params: Any, **more: str) -> Any:
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": LATEST_STATELESS,
            "mcp-method": method,
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        client: httpx.AsyncClient = self.served.client(self.role)
        return client.stream("POST", "/mcp", json=message, headers=headers)


class InSession(Somebody):
    front: HttpFront

    async def arrive(self) -> None:
        key = self.served.keys[self.role]
        self.front = await HttpFront.open(self.served.port, key=key, capabilities=EVERYTHING)
        await self.front.names()  # so that a changed list is announced

    async def use(self) -> None:
        await super().use()
        await self.front.result("resources/subscribe", {"uri": "note://1"})

    async def call(self, tool: str) -> None:
        await self.front.told(tool, **({"secret": self.secret} if "echo" in tool else {}))

    def text(self) -> str:
        return json.dumps(self.front.messages)

    async def leave(self) -> None:
        await super().leave()
        await self.front.close()


FRONTS = {"rest": ByRest, "stateless": ByRequests, "session": InSession}


class Stage:
    """A server that spills, and the two."""

    def __init__(self, served: Served, one: Somebody, two: Somebody) -> None:
        self.served = served
        self.one, self.two = one, two
        self.dropped = served.junction.messages.unattributed

    async def spill(self) -> None:
        """Have the server say everything, and wait until that has been dealt with."""
        server = self.served.junction.servers["peer"]
        expected = self._dealt_with() + 3
        outcome = await server.request("tools/call", b'{"name":"_spill","arguments":{}}', BOUND)
        assert b"spilled" in bytes(outcome.payload)
        async with asyncio.timeout(BOUND):
            while self._dealt_with() < expected:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        for somebody in (self.one, self.two):
            if isinstance(somebody, InSession):
                await somebody.front.result("ping")
        assert self.one.secret not in self.two.text()
        assert self.two.secret not in self.one.text()

    def _dealt_with(self) -> int:
        """How many questions were refused or put to somebody."""
        put = 0
        for somebody in (self.one, self.two):
            if isinstance(somebody, InSession):
                put += sum("method" in m and "id" in m for m in somebody.front.messages)
        return self.dropped["question"] + put

    async def held(self, calls: int) -> None:
        """Wait until so many calls are under way."""
        server = self.served.junction.servers["peer"]
        async with asyncio.timeout(BOUND):
            while server.calls != calls:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("second", FRONTS)
@pytest.mark.parametrize("first", FRONTS)
async def test_on_a_shared_pipe_nothing_of_one_reaches_the_other(gateway, first, second):
    served = await gateway()
    await served.register("peer")
    await _play(served, first, second)


@pytest.mark.parametrize("second", ["rest", "session"])
@pytest.mark.parametrize("first", ["rest", "session"])
@pytest.mark.parametrize("transport", ["HTTP", "SSE"])
async def test_on_a_shared_connection_nothing_of_one_reaches_the_other(
    gateway, remote, transport, first, second
):
    served = await gateway()
    config = await remote(transport.lower())
    await served.register("peer", transport_type=transport, connection_config=config)
    await _play(served, first, second)


async def _play(served: Served, first: str, second: str) -> None:
    one, two = FRONTS[first](served, "agent"), FRONTS[second](served, "admin")
    stage = Stage(served, one, two)
    try:
        await one.arrive()
        await two.arrive()
        await stage.spill()  # before anyone has used it
        assert stage.dropped == {"log": 1, "question": 3}
        await one.use()
        await stage.spill()  # before the second has
        if isinstance(one, InSession):
            own = await one.front.heard("notifications/message")
            assert one.secret in own["params"]["data"], "one alone has used it: it is one's own"
        await two.use()
        await stage.spill()  # after their calls
        assert stage.dropped["log"] == 2
        one.begin()
        await stage.held(1)
        await stage.spill()  # during a call of the first
        two.begin()
        await stage.held(2)
        await stage.spill()  # and of both
        server = served.junction.servers["peer"]
        await server.request("tools/call", b'{"name":"release","arguments":{}}', BOUND)
        await stage.held(0)
        two.begin()
        await stage.held(1)
        await stage.spill()  # during a call of the second, long after the first one's
        assert stage.dropped["log"] == 5
        if isinstance(two, InSession):
            updated = two.front.all_heard(UPDATED)
            assert all(message["params"] == {"uri": "note://1"} for message in updated)
            assert updated
    finally:
        await one.leave()
        await two.leave()
