"""A pytest plugin: the platform in the test's own process: a registry on a store, as in `serve`.

`platform` starts one on the test's store (SQLite, then PostgreSQL), again and again if it is asked:
what was stored is there the next time. `single` is the same on SQLite alone, for what the store
makes no difference to. `toolbox` makes servers to register.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.made_stores import make_tables
from tests.registry.toolbox import BOUND, Toolbox, until

from mcp_junction.app import Junction
from mcp_junction.audit.log import AuditLog
from mcp_junction.calls.call import tool_call
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.tool_search import ToolHit, ToolQuery
from mcp_junction.config.load import Config, load, without_file
from mcp_junction.config.registration import Registration, read_registration
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol.names import PLATFORM
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.registry import Registry, RegistryParts
from mcp_junction.store.audit_records import AuditQuery, AuditRow
from mcp_junction.store.records import ServerRecord
from mcp_junction.store.store import Store, default_url
from mcp_junction.telemetry.bus import Bus
from mcp_junction.testing.fakes import InProcessModel
from mcp_junction.upstream.outcome import Outcome

ADMIN = Principal("ann", Role.ADMIN)


def registration(name: str, server: "Toolbox | None" = None, **fields: Any) -> Registration:
    """A registration as it comes out of a request."""
    config = {"url": server.url} if server is not None else fields.pop("connection_config")
    kind = fields.pop("transport_type", "HTTP")
    body = {"name": name, "transport_type": kind, "connection_config": config, **fields}
    made, problems = read_registration(body)
    assert made is not None, problems
    return made


def heard_by(parts: RegistryParts, calls: CallAudit) -> dict[str, Any]:
    """What a Junction is given so that the registry and the audit hear of its servers and calls."""
    return {
        "clock": parts.context.clock,
        "supervision": parts.context.supervision,
        "audit": calls,
        "call_sinks": parts.call_sinks,
        "server_sinks": parts.server_sinks,
        "review": parts.tools,
    }


class Platform:
    """One run of the platform."""

    def __init__(
        self, junction: Junction, store: Store, audit: AuditLog, bus: Bus, registry: Registry
    ) -> None:
        self.junction = junction
        self.store = store
        self.audit = audit
        self.bus = bus
        self.registry = registry
        self._stack = AsyncExitStack()
        self.session = junction.open_session(lambda frame: None, principal=LOCAL_OWNER)

    async def add(self, name: str, server: Toolbox, **fields: Any) -> ServerRecord:
        """Register a server and wait until it is up."""
        await self.registry.register(registration(name, server, **fields), ADMIN)
        return await self.until(name, "CONNECTED")

    async def until(self, name: str, *statuses: str) -> ServerRecord:
        """Wait for a status."""
        await until(lambda: self.registry.find(name).status in statuses)
        return self.registry.find(name)

    async def call(self, name: str, /, **arguments: Any) -> Outcome:
        """Call a tool by its canonical name, as the local owner."""
        params = {"name": Raw(json.dumps(name).encode())}
        params["arguments"] = Raw(json.dumps(arguments).encode())
        call = tool_call(self.session, self.junction.snapshot, name, params)
        return await asyncio.wait_for(call.snapshot.handle(call), BOUND)

    async def find(self, query: str, limit: int) -> list[ToolHit]:
        """Search for tools, as the local owner."""
        view = self.junction.snapshot.catalog.view(self.session.spelling)
        return (await self.junction.tool_search(ToolQuery(query, limit), view)).hits

    def listed(self) -> list[str]:
        """The names of the tools that a client is shown."""
        view = self.junction.snapshot.catalog.show(PLATFORM)
        return [name for key in self.junction.servers for name in view.names_of(key)]

    async def rows(self, **query: Any) -> list[AuditRow]:
        """The audit, oldest first."""
        await self.audit.flush()
        found = await self.store.audit.rows(AuditQuery(limit=10_000, **query))
        return found[::-1]

    async def events(self, *types: str) -> list[Any]:
        """What was told on the bus until now."""
        await self.bus.flush()
        return await self.store.events.after(0, limit=100_000, types=types)


Start = Callable[..., Awaitable[Platform]]


class Platforms:
    """Starts platforms on one store, one after the other."""

    def __init__(self, opener: Any, folder: Path) -> None:
        self._opener = opener
        self._folder = folder
        self._stack: AsyncExitStack | None = None

    def config(self, servers: dict[str, Any] | None = None, **settings: Any) -> Config:
        if servers is None:
            return without_file({}, settings)
        path = self._folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": servers, "junction": settings}), "utf-8")
        return load(str(path), {}, {}, lenient=True)

    async def __call__(
        self, servers: dict[str, Any] | None = None, environ: Any = None, **settings: Any
    ) -> Platform:
        await self.stop()
        stack = self._stack = AsyncExitStack()
        config = self.config(servers, **settings)
        store = await self._opener()
        audit = await stack.enter_async_context(self._opener.new_log(store))
        bus = await stack.enter_async_context(Bus(store.events))
        calls = CallAudit(audit)
        parts = RegistryParts(RegistryContext(config.settings, store, audit, bus))
        junction = Junction(
            config,
            canonical=PLATFORM,
            supervised=True,
            starts=False,
            environ={} if environ is None else environ,
            **heard_by(parts, calls),
        )
        await stack.enter_async_context(junction)
        registry = await stack.enter_async_context(Registry(junction, parts))
        registry.skills.classifier.set_model(
            InProcessModel()
        )  # the process is tests/skills' subject
        return Platform(junction, store, audit, bus, registry)

    async def stop(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            await stack.aclose()


@pytest.fixture
async def platform(opener, tmp_path):
    platforms = Platforms(opener, tmp_path)
    yield platforms
    await platforms.stop()


@pytest.fixture
async def single(vault, tmp_path):
    from tests.plugin_store import Opener  # a plugin of its own, which is loaded after this one

    async with AsyncExitStack() as stack:
        url = make_tables(default_url(tmp_path / "store"))
        opener = Opener(stack, url, vault, tmp_path / "data")
        platforms = Platforms(opener, tmp_path)
        yield platforms
        await platforms.stop()


@pytest.fixture
async def toolbox():
    async with AsyncExitStack() as stack:

        async def make(tools: list[dict] | None = None) -> Toolbox:
            return await stack.enter_async_context(Toolbox(tools))

        yield make
