"""ApiContext: what the REST handlers work with. Imports none of the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mcp_junction.api.calling import RestCalls
from mcp_junction.api.event_streams import EventStreams
from mcp_junction.api.front import App, RestFront
from mcp_junction.api.rest_search import RestSearch
from mcp_junction.app import Junction
from mcp_junction.config.settings import OFF
from mcp_junction.credentials.credentials import Credentials
from mcp_junction.credentials.sign_ins import SignIns
from mcp_junction.governance.approvals import PAGES
from mcp_junction.governance.policy_admin import PolicyAdministration, token_ttl_of
from mcp_junction.identity.keys import KeyRing
from mcp_junction.listener.http.approval_pages import ApprovalPages
from mcp_junction.listener.http.host import HttpHost, Receive, Scope, Send
from mcp_junction.listener.http.pages import PageSessions, SessionSigner
from mcp_junction.listener.http.sign_in_pages import SignInPages
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.registry.registry import Registry
from mcp_junction.registry.server_registration import ServerRegistrar
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus


class ApiContext:
    """What the handlers work with."""

    def __init__(
        self,
        junction: Junction,
        registry: Registry,
        bus: Bus,
        store: Store,
        keys: KeyRing,
        credentials: Credentials,
        signer: SessionSigner,
    ) -> None:
        """``signer`` signs the cookies of our pages."""
        self._signer = signer
        self.junction = junction
        self.credentials = credentials
        if keys.tokens is not None:
            credentials.subject_tokens = keys.tokens
            keys.tokens.on_changed = credentials.follow_subject_tokens
        servers = junction.servers
        self.sign_ins = SignIns(credentials, lambda: [one.definition for one in servers.values()])
        self.registry = registry
        self.registrar = ServerRegistrar(registry)
        self.store = store
        self.denials = registry.audit.denials
        self.searching = RestSearch(junction, registry)
        self.calling = RestCalls(junction, registry, keys.is_in_force)
        self._tasks = TaskScope("REST")
        self.streams = EventStreams(
            bus, store.events, self._tasks, keys.is_in_force, junction.quotas
        )
        self.front = RestFront(
            keys,
            self._make,
            registry.metrics,
            self.denials.add,
            lambda: self.refresh_keys(),  # the service puts its own in place later
        )
        self.keys = keys
        assert junction.governance is not None, "the service has a policy"
        self.governance = junction.governance
        """What decides about calls."""
        self.live_policy = self.governance.policy
        """The grants as they are in force now."""
        self.policies = self._make_policies(bus)
        """Changes grants, agents and tokens."""
        self.has_owner: Callable[[], bool] = lambda: False
        """Whether there is a local owner, who needs no key; the service says."""
        self.refresh_keys: Callable[[], Awaitable[object]] = keys.refresh
        """Takes over changes of keys; the service also ends what revoked ones have open."""

    def _make_policies(self, bus: Bus) -> PolicyAdministration:
        junction, governance = self.junction, self.governance

        def forget(agent_id: str, grant_ids: Sequence[str]) -> None:
            governance.limits.forget(grant_ids)
            agent = junction.scopes.forget(Principal(agent_id, Role.AGENT))
            junction.snapshot.catalog.forget_agent(agent)

        return PolicyAdministration(
            self.store,
            governance.sync,
            self.registry.audit,
            bus,
            token_ttl_of(junction.settings),
            lambda: {
                ref: one for name, one in governance.server_ids.items() for ref in (one, name)
            },
            forget,
        )

    def make_pages(self, host: HttpHost) -> App:
        """Make the pages on which people sign in to servers and decide about calls."""
        credentials, keys = self.credentials, self.keys
        sessions = PageSessions(
            host.principal,
            keys,
            self._signer,
            lambda: credentials.public_url,
            self.denials.add,
            "" if keys.tokens is None else keys.tokens.door.issuer,
            lambda: self.refresh_keys(),  # the service puts its own in place later
        )
        sign_in_pages = SignInPages(self.sign_ins, sessions, self.junction.settings.name)
        approval_pages = ApprovalPages(
            self.governance.approvals, sessions, lambda one: self.server_names.get(one, one)
        )

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            is_approval = scope["path"].startswith(PAGES)
            await (approval_pages if is_approval else sign_in_pages)(scope, receive, send)

        return serve

    def set_public_url(self, url: str) -> None:
        """Tell what sends people to our pages under which address they reach these."""
        self.credentials.public_url = url
        self.governance.approvals.public_url = url

    @property
    def server_names(self) -> dict[str, str]:
        """The names of servers by their ids."""
        return {one.definition.id: name for name, one in self.junction.servers.items()}

    async def make_key(self, role: Role, agent: str, by: Principal) -> tuple[KeyRecord, str]:
        """Make a key, audited; return its record, and the key itself, which is not stored."""
        who, detail = (by.id, by.role.value), {"role": role.value}
        async with self.registry.audit.act(*who, "key.create", target=agent, detail=detail):
            return await self.keys.create(role, agent, by.id)

    async def load(self) -> None:
        """Load the REST routes. Call it before the service listens: loading holds up calls."""
        self.junction.tool_search.begin()
        await self.front.load()

    async def wait_until_indexed(self) -> None:
        """Wait until the tools of the servers are stored and indexed for search."""
        await self.registry.wait_until_stored()
        await self.junction.tool_search.begin().wait_until_current()

    def open(self) -> None:
        """Begin to classify what is found."""
        if self.junction.settings.classifier != OFF:
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
