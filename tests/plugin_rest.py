"""A pytest plugin: Junction with its REST API, in this process, on a port of its own.

`served` is one over a store, SQLite and PostgreSQL in turn; `gateway` starts one as it is wanted.
The routes are built once and used by all of them: building them takes longer than most tests.
"""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.peer_http import HttpPeer, SsePeer
from tests.keyring import grant_all
from tests.made_stores import make_tables
from tests.plugin_http import PEER, Said
from tests.plugin_registry import heard_by

from mcp_junction.api.context import ApiContext
from mcp_junction.app import Junction
from mcp_junction.audit.log import AuditLog
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.config.load import Config, without_file
from mcp_junction.credentials.credentials import Credentials
from mcp_junction.governance.governance import open_governance
from mcp_junction.identity.issuer_keys import IssuerKeys
from mcp_junction.identity.keys import KeyRing
from mcp_junction.identity.tokens import AccessTokens
from mcp_junction.policy.principal import AccessPolicy, Role
from mcp_junction.protocol.names import PLATFORM
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.registry import Registry, RegistryParts
from mcp_junction.registry.search_vectors import StoredVectors
from mcp_junction.search.semantic import SemanticIndex
from mcp_junction.service import Service
from mcp_junction.store.store import default_url, open_store
from mcp_junction.telemetry.bus import Bus
from mcp_junction.testing.fakes import InProcessModel

BOUND = 20.0
SERVERS = "/api/v1/aggregator/servers"
CALL = "/api/v1/tools/call"
ROLES = ("admin", "orchestrator", "agent", "viewer")


def stdio_config(**options: Any) -> dict[str, Any]:
    """The connection of the peer on stdio."""
    return {"command": sys.executable, "args": ["-E", "-S", str(PEER), json.dumps(options)]}


def registration(name: str = "peer", **more: Any) -> dict[str, Any]:
    """The body that registers the peer on stdio."""
    given = {"name": name, "transport_type": "STDIO", "connection_config": stdio_config()}
    return {**given, **more}


class Served:
    """A gateway with its REST API."""

    def __init__(self, port: int, keys: dict[str, str], parts: dict[str, Any]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.keys = keys
        self.junction: Junction = parts["junction"]
        self.registry: Registry = parts["registry"]
        self.audit: AuditLog = parts["audit"]
        self.bus: Bus = parts["bus"]
        self.ring: KeyRing = parts["ring"]
        self.service: Service = parts["service"]
        self.context: ApiContext = parts["context"]
        self._clients: dict[str | None, httpx.AsyncClient] = {}

    def client(self, role: str | None = "admin") -> httpx.AsyncClient:
        """A client with a role's key, or with none."""
        if role not in self._clients:
            headers = {} if role is None else {"authorization": f"Bearer {self.keys[role]}"}
            self._clients[role] = httpx.AsyncClient(
                base_url=self.url, headers=headers, timeout=BOUND, trust_env=False, verify=False
            )
        return self._clients[role]

    async def register(self, name: str = "peer", **more: Any) -> dict[str, Any]:
        """Register a peer and wait until it is connected; its record."""
        answer = await self.client().post(SERVERS, json=registration(name, **more))
        assert answer.status_code == 201, answer.text
        await asyncio.wait_for(self.junction.servers[name].settled.wait(), BOUND)
        return await self.until(name, "CONNECTED")

    async def until(self, name: str, *states: str) -> dict[str, Any]:
        """Wait until a server is in one of these states; its record."""
        async with asyncio.timeout(BOUND):
            while True:
                shown = (await self.client().get(f"{SERVERS}/{name}")).json()
                if shown["status"] in states:
                    return shown
                await asyncio.sleep(0.02)

    async def call(self, name: str, arguments: Any = None, *, role: str = "admin", **more: Any):
        body = {"name": name, "arguments": arguments or {}, **more}
        return await self.client(role).post(CALL, json=body)

    async def busy(self, calls: int = 1) -> None:
        """Wait until so many REST calls are with their servers."""
        async with asyncio.timeout(BOUND):
            while self._sent() != calls:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)

    def _sent(self) -> int:
        running = self.context.calling.running
        return sum(call.flight is not None for call in running) if running else 0

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()


_CURRENT_CONTEXT: ContextVar[ApiContext] = ContextVar("_CURRENT_CONTEXT")


class _ContextOfRequest(ApiContext):
    """The ApiContext of the gateway that a request came to."""

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(_CURRENT_CONTEXT.get(), name)


class SharedContext(ApiContext):
    """An ApiContext whose routes all gateways of this process share."""

    def _make(self) -> Any:
        from mcp_junction.api import app

        return _Entrance(self, _shared_app(app.make_app))


@cache
def _shared_app(make_app: Any) -> Any:
    return make_app(_ContextOfRequest())


class _Entrance:
    """Passes the requests of one gateway into the shared routes."""

    def __init__(self, context: ApiContext, app: Any) -> None:
        self._context = context
        self._app = app
        self.operations = app.operations

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _CURRENT_CONTEXT.set(self._context)
        await self._app(scope, receive, send)


async def open_credentials(stack: AsyncExitStack, store: Any, parts: Any, config: Config) -> Any:
    """The credentials of a gateway, as `mcp-junction serve` opens them."""

    async def tables() -> Any:
        return store.credentials

    credentials = Credentials(tables, config.settings.name, config.settings.public_url)
    credentials.listeners.append(parts.lifecycle.note_credential)
    stack.push_async_callback(credentials.close)
    await credentials.load()
    return credentials


async def serve_api(
    stack: AsyncExitStack,
    opener: Any,
    config: Config | None = None,
    only: tuple[str, ...] = ROLES,
    has_worker: bool = False,
    has_vectors: bool = False,
    policy: AccessPolicy | None = None,
    grants: bool = True,
    state_keys: Any = None,
    **settings: Any,
) -> Served:
    """Compose a gateway as `mcp-junction serve` does; it ends with the stack.

    The model of skills computes in this process, unless it ``has_worker``. Searches go by words,
    unless it ``has_vectors``. Unless without ``grants``, the-agent may use everything.
    """
    config = config or without_file({}, settings)
    store = await opener()
    audit = await opener.log(store)
    bus = await stack.enter_async_context(Bus(store.events))
    parts = RegistryParts(RegistryContext(config.settings, store, audit, bus))
    if grants and "agent" in only:
        await grant_all(store, "the-agent")
    context = parts.context
    governance = await open_governance(
        config.settings, store, audit, bus, context.tool_settings, context.clock, config.door
    )
    heard = heard_by(parts, CallAudit(audit))
    heard["server_sinks"] += governance.server_sinks
    credentials = await open_credentials(stack, store, parts, config)
    junction = Junction(
        config,
        token_sources=credentials,
        canonical=PLATFORM,
        supervised=True,
        starts=False,
        policy=policy,
        governance=governance,
        state_keys=state_keys,
        **heard,
    )
    await stack.enter_async_context(junction)
    registry = await stack.enter_async_context(Registry(junction, parts))
    if not has_worker:
        registry.skills.classifier.set_model(InProcessModel())
    ring = await KeyRing.open(store)
    if config.door is not None and governance.claim_grants is not None:
        issuer, revoked = IssuerKeys(config.door), store.revoked_subjects
        ring.tokens = AccessTokens(config.door, issuer, revoked, governance.claim_grants.admit)
    keys = {role: (await ring.create(Role(role), f"the-{role}", "test"))[1] for role in only}
    context = SharedContext(junction, registry, bus, store, ring, credentials, opener.vault)
    if has_vectors:
        vectors = SemanticIndex(junction.tasks, InProcessModel(), StoredVectors(registry, store))
        context.searching.use_vectors(store, lambda: vectors)
    service = Service(junction, ring, "127.0.0.1", context)
    stop, said = asyncio.Event(), Said()
    logging.getLogger("mcp_junction.service").addHandler(said)
    task = asyncio.create_task(service.serve("127.0.0.1", 0, stop))
    try:
        await asyncio.wait({task, said.port}, return_when=asyncio.FIRST_COMPLETED, timeout=BOUND)
    finally:
        logging.getLogger("mcp_junction.service").removeHandler(said)
    if not said.port.done():
        await task
    made = {"junction": junction, "registry": registry, "audit": audit, "bus": bus, "ring": ring}
    served = Served(said.port.result(), keys, {**made, "service": service, "context": context})

    async def end() -> None:
        await served.close()
        stop.set()
        await asyncio.wait_for(task, BOUND)

    stack.push_async_callback(end)
    return served


@pytest.fixture
async def served(opener) -> AsyncIterator[Served]:
    """A gateway without servers, over each kind of store."""
    async with AsyncExitStack() as stack:
        yield await serve_api(stack, opener)


class _SqliteOpener:
    """Opens one SQLite store; for what does not depend on the kind of store."""

    def __init__(self, stack: AsyncExitStack, folder: Path, vault: Any) -> None:
        self._stack = stack
        self._folder = folder
        self._vault = self.vault = vault

    async def __call__(self) -> Any:
        store = await open_store(make_tables(default_url(self._folder)), self._vault)
        self._stack.push_async_callback(store.close)
        return store

    async def log(self, store: Any) -> Any:
        from tests.plugin_store import Opener

        return await Opener(self._stack, "", self._vault, self._folder).log(store)


@pytest.fixture
async def gateway(tmp_path, vault) -> AsyncIterator[Any]:
    """Start gateways over SQLite, with these settings or this config."""
    async with AsyncExitStack() as stack:

        async def start(config: Config | None = None, **settings: Any) -> Served:
            opener = _SqliteOpener(stack, tmp_path / "data", vault)
            return await serve_api(stack, opener, config, **settings)

        yield start


@pytest.fixture
async def remote() -> AsyncIterator[Any]:
    """Peers that listen: the connection of one over http or sse."""
    async with AsyncExitStack() as stack:

        async def start(transport: str, **options: Any) -> dict[str, Any]:
            kind = HttpPeer if transport == "http" else SsePeer
            peer = await stack.enter_async_context(kind(**options))
            return {"url": peer.url}

        yield start
