"""ApiContext: what the REST handlers work with. Imports nothing of Litestar."""

from __future__ import annotations

from collections.abc import Callable

from mcp_junction.api.calling import RestCalls
from mcp_junction.api.event_streams import EventStreams
from mcp_junction.api.front import App, RestFront
from mcp_junction.api.invocations import InvocationErrors
from mcp_junction.api.rest_search import RestSearch
from mcp_junction.app import Junction
from mcp_junction.config.settings import OFF
from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import Principal
from mcp_junction.registry.registry import Registry
from mcp_junction.registry.server_registration import ServerRegistrar
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus


class ApiContext:
    """What the handlers work with."""

    def __init__(
        self, junction: Junction, registry: Registry, bus: Bus, store: Store, keys: KeyRing
    ) -> None:
        self.junction = junction
        self.registry = registry
        self.registrar = ServerRegistrar(registry)
        self.store = store
        self.denials = registry.audit.denials
        self.searching = RestSearch(junction, registry)
        self._tool_search = junction.tool_search
        self._classifies = junction.settings.classifier != OFF
        self.calling = RestCalls(junction, registry, keys.is_in_force)
        self.invocation_errors = InvocationErrors(junction, registry, self.calling.errors)
        self._tasks = TaskScope("REST")
        self.streams = EventStreams(
            bus, store.events, self._tasks, keys.is_in_force, junction.quotas
        )
        self.front = RestFront(keys, self._make, registry.metrics, self.denials.add)

    @property
    def is_audit_failing(self) -> bool:
        """Whether audit rows cannot be stored now."""
        return self.registry.audit.is_failing

    async def load(self) -> None:
        """Load the REST routes. Call it before the service listens: loading holds up calls."""
        self._tool_search.begin()
        await self.front.load()

    async def wait_until_indexed(self) -> None:
        """Wait until the tools of the servers are stored and indexed for search."""
        await self.registry.wait_until_stored()
        await self._tool_search.begin().wait_until_current()

    def open(self) -> None:
        """Begin to classify what is found."""
        if self._classifies:
            self.registry.skills.classifier.begin()

    def drain(self) -> None:
        """Take no more requests; streams end, calls go on."""
        self.front.drain()
        self.streams.end(lambda _: False)

    def expel(self, is_allowed: Callable[[Principal], bool]) -> None:
        """Close what revoked principals have open."""
        self.calling.end(is_allowed, "the key was revoked")
        self.streams.end(is_allowed)

    async def close(self) -> None:
        await self._tasks.close()

    def _make(self) -> App:
        # Imported where it is used: commands that only talk to the service do without it.
        from mcp_junction.api.app import make_app

        return make_app(self)
