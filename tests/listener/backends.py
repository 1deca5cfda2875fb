"""A client at a Dispatcher, without a wire and without servers: everything in this process."""

import asyncio
import json
from typing import Any

from msgspec import Raw
from tests.fakes.pipeline_parts import TestParts

from mcp_junction.calls.call import Call, Snapshot
from mcp_junction.calls.pipeline import build_handlers
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint
from mcp_junction.catalog.scope import OPEN, OPEN_SCOPES, Scope
from mcp_junction.config.settings import Quota, Settings
from mcp_junction.errors import FrameError
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.pipe import PipeClient
from mcp_junction.listener.replies import PipeReplies, Reply, refuse_bytes
from mcp_junction.listener.stateless import StatelessDispatcher
from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import names, requests
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LATEST_STATELESS,
    VERSION_KEY,
)
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen
from mcp_junction.sessions.stateless import StatelessClient as ClientOfRequest
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeUpstream, catalog_of

BOUND = 30.0


class FakeBackend:
    """A Backend over FakeUpstreams; settled at once, or when ``settle`` is called."""

    def __init__(
        self,
        *upstreams: FakeUpstream,
        settled: bool = True,
        quota: dict[str, int] | None = None,
        **settings: Any,
    ) -> None:
        clock = SystemClock()
        self.settings = Settings(**settings)
        composed = TestParts(clock)
        self.parked_calls = composed.parked_calls
        self._handlers = build_handlers(composed.parts)
        self.snapshot = Snapshot(catalog_of(*upstreams), self._handlers)
        self.is_settled = settled
        self.junction_id = "here"
        self.summary = self.relay = self
        self.quotas = Quotas(Quota(**(quota or {})))
        self.scopes = OPEN_SCOPES
        self.sessions: list[Session] = []
        self.levels: list[int] = []
        self.passed_on: list[tuple[str, bytes]] = []
        self.stateless_clients: list[ClientOfRequest] = []
        self.listened_to: list[Listen] = []
        self._gate = asyncio.Event()

    def reachable_junctions(self, scope: Scope) -> set[str]:
        return {self.junction_id, "behind"}

    async def wait_until_settled(self, scope: Scope = OPEN) -> None:
        if not self.is_settled:
            await self._gate.wait()

    async def wait_for_offer(self, call: Call) -> None:
        view = self.snapshot.catalog.view(call.caller.spelling, call.address.kind)
        if view.find(call.name) is None:
            await self.wait_until_settled()

    def settle(self, *upstreams: FakeUpstream) -> None:
        if upstreams:
            self.snapshot = Snapshot(catalog_of(*upstreams), self._handlers)
        self.is_settled = True
        self._gate.set()

    # -- stateless clients

    def spelling(self, endpoint: Endpoint, principal: Principal) -> Spelling:
        return names.STDIO

    def capabilities(self, scope: Scope) -> dict[str, Any]:
        return {}

    def instructions(self, scope: Scope) -> str:
        return ""

    has_all_instructions = True

    async def wait_for_instructions(self, scope: Scope) -> None:
        """Nobody is waited for."""

    def add_listen(self, listen: Listen) -> None:
        self.listened_to.append(listen)

    def remove_listen(self, listen: Listen) -> None:
        if listen in self.listened_to:
            self.listened_to.remove(listen)

    # -- the others

    def note_client(self, client: Session | ClientOfRequest) -> None:
        if isinstance(client, ClientOfRequest):
            self.stateless_clients.append(client)
        else:
            self.sessions.append(client)

    def notify_servers(self, session: Session, method: str, params: Raw | bytes) -> None:
        self.passed_on.append((method, bytes(params)))

    async def update_log_levels(self) -> None:
        self.levels += [session.log_level for session in self.sessions]


class Client:
    """Sends what a client would, line by line, and keeps what comes back."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.tasks = TaskScope("calls")
        self.dispatcher = Dispatcher(backend, self.tasks)
        self.sent: list[bytes] = []
        usage = backend.quotas.of(LOCAL_OWNER)
        self.session = Session(LOCAL_OWNER, names.STDIO, self.sent.append, usage=usage)

    def say(self, line: bytes) -> None:
        """One line, as a listener would take it."""
        try:
            frame = requests.decode(line)
        except FrameError as error:
            self.session.send(refuse_bytes(error))
            return
        rest = self.dispatcher.receive(self.session, frame, PipeReplies(self.session))
        if rest is not None:
            self.tasks.run_pooled(rest)

    def open(self, name: str = "test", **capabilities: Any) -> dict[str, Any]:
        about = {"name": name, "version": "1"}
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "clientInfo": about,
        }
        self.request("initialize", params, id="open")
        return self.answer("open")

    def request(self, method: str, params: Any = None, *, id: Any = 1) -> None:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        self.say(json.dumps(message if params is None else message | {"params": params}).encode())

    def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        self.say(json.dumps(message if params is None else message | {"params": params}).encode())

    async def finished(self) -> None:
        """Until every call has ended."""
        await self.tasks.settle(BOUND)
        assert not len(self.tasks)

    def take(self) -> list[dict[str, Any]]:
        """What has come since the last time."""
        taken = [json.loads(line, parse_constant=_refuse) for line in self.sent]
        assert all(line.count(b"\n") == 1 for line in self.sent)
        self.sent.clear()
        return taken

    def answer(self, id: Any = 1) -> dict[str, Any]:
        """The one frame that has come, which answers this request."""
        (frame,) = self.take()
        assert frame["id"] == id
        return frame


class StatelessClient:
    """A client of the stateless era on a pipe."""

    def __init__(self, backend: FakeBackend) -> None:
        self.tasks = TaskScope("calls")
        self.dispatcher = StatelessDispatcher(backend)
        self.sent: list[dict[str, Any]] = []
        self.offered: list[dict[str, Any]] = []
        self.pipe = PipeClient(self.dispatcher, LOCAL_OWNER, EVERYTHING, self, self.tasks)

    def send(self, frame: bytes) -> None:
        self.sent.append(json.loads(frame))

    def offer(self, frame: bytes) -> None:
        self.offered.append(json.loads(frame))

    def say(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.pipe.receive(requests.decode(line))

    def request(
        self,
        method: str,
        params: Any = None,
        *,
        id: Any = 1,
        client: Any = None,
        can: Any = None,
        **more: Any,
    ) -> None:
        meta = {
            VERSION_KEY: LATEST_STATELESS,
            CAPABILITIES_KEY: can or {},
            CLIENT_INFO_KEY: client or {},
            **more,
        }
        self.say({"id": id, "method": method, "params": {**(params or {}), "_meta": meta}})

    def listen(self, *uris: str, id: Any = 1) -> None:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": uris}
        self.request("subscriptions/listen", {"notifications": wanted}, id=id)

    async def turns(self, count: int = 10) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


class Recorder:
    """A ReplyChannel that keeps the answers."""

    def __init__(self, headers: dict[bytes, bytes] | None = None) -> None:
        self.headers = headers
        self.correlation_id = ""
        self.replies: list[Reply | None] = []

    def send(self, frame: bytes) -> None:
        """What comes before the answer is not kept."""

    offer = send

    def end(self, frame: bytes) -> None:
        self.replies.append(Reply(frame))

    def end_with(self, frame_id: bytes, reply: Reply | None) -> None:
        self.replies.append(reply)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} was sent")
