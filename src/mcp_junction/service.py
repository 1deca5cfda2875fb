"""Service: Junction on the network: the HTTP listener, its keys and endpoints, put together.

A second composition root beside ``app.py``, for what only the service has; the stdio mode never
imports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from mcp_junction.api.context import ApiContext
from mcp_junction.app import Junction
from mcp_junction.calls.call import Call
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, named_sets, one_server
from mcp_junction.eras.tickets import TicketOwner
from mcp_junction.errors import JunctionError, UsageError
from mcp_junction.identity.challenges import Door
from mcp_junction.identity.keys import KeyRing
from mcp_junction.identity.tokens import AccessTokens
from mcp_junction.listener.acceptance import accept
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.http.app import HttpListener
from mcp_junction.listener.http.forwarded import Forwarded
from mcp_junction.listener.http.guard import guard_for, is_loopback
from mcp_junction.listener.http.host import App
from mcp_junction.listener.http.owner import OwnerCheck
from mcp_junction.listener.http.server import HttpServer, make_certificate, protocol_for
from mcp_junction.listener.http.sessions import SessionRegistry
from mcp_junction.listener.http.stateless import StatelessFront
from mcp_junction.listener.stateless import StatelessDispatcher
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.sessions.revocation import Revocation
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen
from mcp_junction.tasks import TaskScope, wait_unless

log = logging.getLogger("mcp_junction.service")

DRAIN = 30
KEYS_EVERY = 0.5
AUDIT = "audit"
"""What is down when rows of the audit are not stored, whether its task runs or not."""
SERVERS_WITHIN = 2.0
"""Seconds that servers have to come up before we listen, unless all they offer is known."""


class Service:
    """Starts to listen, drains and stops. It is the HttpHost of the listener."""

    def __init__(
        self,
        junction: Junction,
        keys: KeyRing,
        host: str,
        rest: ApiContext | None = None,
        *,
        owner_without_key: bool = False,
        on_loaded: Callable[[], None] | None = None,
        on_listening: Callable[[str], None] | None = None,
    ) -> None:
        """``on_loaded`` is called when all that calls need is loaded, before any can come;
        ``on_listening`` with the address, once there is one."""
        self._junction, self._rest, self._keys = junction, rest, keys
        self.principal_of = keys.principal
        self._refreshing = asyncio.Lock()
        settings = junction.settings
        self._needs_key = settings.require_key or not is_loopback(host)
        if owner_without_key and self._needs_key:
            raise UsageError("--owner-without-key: only on loopback, and not with --require-key")
        self._owner_without_key = owner_without_key
        self._certificate = make_certificate(settings.tls_cert, settings.tls_key)
        self._owner = OwnerCheck()
        if not is_loopback(host) and not keys.has_any and keys.tokens is None:
            raise UsageError(
                f"listening on {host} needs keys: make one with `mcp-junction keys create`,"
                " or listen on 127.0.0.1"
            )
        self._sets: tuple[object, dict[str, Endpoint]] = (None, {})
        self._find_set("")  # raises for a set that makes no sense
        self._calls = TaskScope("requests")
        self._draining = False
        self._expelled_generation = keys.generation
        self._on_loaded = on_loaded
        self._on_listening = on_listening
        self.public_url = settings.public_url
        """The address under which clients reach us; known once we listen."""
        self._registry = SessionRegistry(
            junction.clock,
            settings.session_idle_ms / 1000,
            junction.relay.end_session,
        )
        self._stateless = StatelessDispatcher(junction, accept)
        self._sync = junction.governance.sync if junction.governance is not None else None
        self._revocation = self._make_revocation()
        if rest is not None:
            rest.has_owner = lambda: self._is_open_to_owner
            rest.refresh_keys = self.refresh_keys
        self._listener = self._make_listener(host, rest)

    def _make_listener(self, host: str, rest: ApiContext | None) -> HttpListener:
        settings = self._junction.settings
        return HttpListener(
            self,
            Dispatcher(self._junction, self._calls, accept),
            self._registry,
            StatelessFront(self._stateless, self._calls),
            guard_for(host, settings),
            Door(self._keys, settings.name, self.refresh_keys),
            self._calls,
            settings.max_body_bytes,
            rest.front if rest is not None else None,
            rest.denials.add if rest is not None else None,
            rest.make_pages(self) if rest is not None else None,
        )

    def _make_revocation(self) -> Revocation | None:
        """Make what closes what agents may not have any more; None without a policy."""
        junction, governance = self._junction, self._junction.governance
        if governance is None:
            return None
        revocation = Revocation(
            governance.policy,
            junction.scopes,
            junction.clients,
            junction.relay,
            junction.parked_calls,
            lambda: junction.snapshot.catalog,
            self,
        )
        governance.sync.sinks.append(revocation.apply)
        return revocation

    # -- the OpenCalls of Revocation

    def running_calls(self) -> Iterator[Call]:
        for session in self._junction.clients.sessions:
            yield from session.calls.values()
        yield from self._stateless.running_calls
        if self._rest is not None:
            yield from self._rest.calling.running

    def end_sessions(self, is_over: Callable[[Session], bool]) -> None:
        self._registry.end(is_over, "there is nothing here for you any more")

    def end_listens(self, is_over: Callable[[Listen], bool]) -> None:
        self._stateless.end_listens(is_over)

    # -- the HttpHost of the listener

    def principal(self, headers: dict[bytes, bytes], scope: dict[str, Any]) -> Principal | None:
        authorization = headers.get(b"authorization")
        if authorization:
            return self.principal_of(authorization)
        if self._is_open_to_owner and self._owner.is_owner_request(scope, headers):
            return LOCAL_OWNER
        return None

    @property
    def _is_open_to_owner(self) -> bool:
        """Whether the owner needs no key: while nobody else was ever let in here."""
        if self._needs_key:
            return False
        has_others = self._keys.has_issued_client_keys or self._keys.tokens is not None
        return self._owner_without_key or not has_others

    def endpoint(self, path: str) -> Endpoint | None:
        """Find what is at a path now: all servers, one of them, or a named set."""
        path = path.rstrip("/")
        if path == "/mcp":
            return EVERYTHING
        if not path.startswith("/mcp/"):
            return None
        name = path[5:]
        return one_server(name) if name in self._junction.servers else self._find_set(name)

    def can_see(self, principal: Principal, endpoint: Endpoint) -> bool:
        """Whether an endpoint exists for a principal: not if all its servers are hidden from it."""
        if endpoint is EVERYTHING:
            return True
        scope = self._junction.scopes.of(principal, endpoint)
        catalog = self._junction.snapshot.catalog
        return scope.grants is None or any(
            catalog.has_server(scope, key) for key in self._junction.servers
        )

    def _find_set(self, name: str) -> Endpoint | None:
        config = self._junction.config
        if self._sets[0] is not config:
            self._sets = config, named_sets(config)
        return self._sets[1].get(name)

    def open_session(
        self, principal: Principal, endpoint: Endpoint, send: Callable[[bytes], None]
    ) -> Session:
        return self._junction.open_session(send, None, principal, endpoint)

    @property
    def is_ready(self) -> bool:
        return self._junction.is_settled and not (self._draining or self.down)

    @property
    def down(self) -> list[str]:
        """Names of the vital parts that are down: tasks, the audit or the store."""
        is_blind = self._keys.is_blind or (self._sync is not None and self._sync.is_blind)
        down = ["store"] if is_blind else []
        if self._rest is not None and self._rest.registry.audit.is_failing:
            down.append(AUDIT)
        return down + [task for task in self._junction.tasks.supervision.down if task not in down]

    @property
    def warnings(self) -> dict[str, int]:
        """Counts of what an operator should look at though the service is ready."""
        governance = self._junction.governance
        count = governance.tool_settings.unverified if governance is not None else 0
        return {"unverified_tool_settings": count} if count else {}

    # -- life

    async def serve(
        self, host: str, port: int, stop: asyncio.Event, hurried: asyncio.Event | None = None
    ) -> None:
        """Serve until ``stop`` is set, then finish what is running, unless that is ``hurried``.

        Raises JunctionError if the HTTP server ends by itself: who watches over us starts us again.
        """
        if self._rest is not None:
            await self._prepare(self._rest, stop)
        await self.refresh_keys()  # loading may have taken longer than keys are believed
        if self._on_loaded is not None:
            self._on_loaded()
        junction = self._junction
        longest, stalls, quotas = junction.settings.max_body_bytes, junction.stalls, junction.quotas
        protocol = protocol_for(self._calls, longest, stalls=stalls, quotas=quotas)
        server = HttpServer(self._app(), host, port, protocol, certificate := self._certificate)
        serving = junction.tasks.spawn(server.serve())
        sweeping = junction.tasks.supervise("sessions", self._registry.run)
        watching = junction.tasks.supervise("keys", self._watch_keys)
        if junction.governance is not None:
            junction.governance.start(junction.tasks, junction.clock)
        shown, bound = await server.wait_until_started(serving)
        address = self._announce("http" if certificate is None else "https", shown, bound)
        if certificate is not None:
            self._junction.tasks.supervise("certificate", certificate.run, is_vital=False)
        self._open_door()
        if self._rest is not None:
            self._rest.set_public_url(self.public_url)
            self._rest.open()
        if self._on_listening is not None:
            self._on_listening(address)
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        has_lost_listener = serving.done() and not serving.cancelled()
        await self._drain(hurried or asyncio.Event())
        server.stop()
        sweeping.cancel()
        watching.cancel()
        await asyncio.wait({serving}, timeout=5)
        await self._calls.close()
        if self._rest is not None:
            await self._rest.close()
        if has_lost_listener:
            raise JunctionError("the HTTP server ended by itself; start Junction again")

    def _announce(self, scheme: str, host: str, port: int) -> str:
        """Log where we listen, and return the address."""
        if self._owner_without_key:
            log.warning("/mcp needs no key of you on this machine: --owner-without-key was given")
        log.warning("listening on %s://%s:%d/mcp", scheme, host, port)
        address = f"{scheme}://{host}:{port}"
        self.public_url = self._junction.settings.public_url or address
        return address

    def _open_door(self) -> None:
        """Accept access tokens, if there is an issuer of them."""
        tokens = self._keys.tokens
        if tokens is not None:
            tokens.public_url = self.public_url
            run = partial(tokens.keys.run, self._junction.clock.sleep)
            self._junction.tasks.supervise("issuer keys", run, is_vital=False)

    async def _drain(self, hurried: asyncio.Event) -> None:
        """Take no new calls, wait for those that run, and answer those that are not waited for."""
        self._draining = True
        self._listener.drain()
        if self._rest is not None:
            self._rest.drain()
        self._stateless.drain()
        self._junction.parked_calls.end(lambda _: True, "Junction is ending")
        await self._wait_for_calls(hurried)
        self._end_calls()

    async def _prepare(self, rest: ApiContext, stop: asyncio.Event) -> None:
        """Load the REST routes and wait for new servers: later both would hold up calls.

        Servers of which nothing is stored have a moment to come up: whoever calls them earlier
        would wait for that anyway, and the others for their lists to be taken in.
        """
        junction = self._junction
        has_new = bool(junction.servers.keys() - junction.live_catalog.catalog.offerings.keys())
        await rest.load()
        if not has_new:
            return
        with suppress(TimeoutError):  # whoever needs them waits for them
            async with asyncio.timeout(SERVERS_WITHIN):
                await wait_unless(stop, self._wait_for_new_servers(rest))

    async def _wait_for_new_servers(self, rest: ApiContext) -> None:
        junction = self._junction
        await junction.wait_until_settled()
        await junction.live_catalog.prepare(junction.spelling())
        await rest.wait_until_indexed()

    def _app(self) -> App:
        """The listener, behind what believes trusted proxies where there are any."""
        proxies = self._junction.settings.trusted_proxies
        return Forwarded(self._listener, proxies) if proxies else self._listener

    async def _watch_keys(self) -> None:
        """Learn of revoked keys and changed grants, and end what these have open."""
        while True:
            await self._junction.clock.sleep(KEYS_EVERY)
            await self.refresh_keys()

    async def refresh_keys(self) -> None:
        """Take over what has changed of keys and grants, and end what is not allowed any more."""
        async with self._refreshing:  # once at a time: else older grants could follow newer ones
            began = self._junction.clock.now()
            generations = await self._keys.refresh()
            generation = self._keys.generation
            if generation != self._expelled_generation:
                self._registry.expel(self._is_allowed)
                self._stateless.end_disallowed(self._is_allowed, "the key was revoked")
                self._junction.parked_calls.end(self._is_revoked, "the key was revoked")
                if self._rest is not None:
                    self._rest.expel(self._keys.is_in_force)
                self._expelled_generation = generation  # now: what fails here is done again
            if generations is not None and self._sync is not None:
                await self._sync.follow(generations, began)
            if generations is not None and self._rest is not None:
                await self._rest.credentials.follow(generations)
            if self._keys.tokens is not None:
                self._end_expired(self._keys.tokens)

    def _end_expired(self, tokens: AccessTokens) -> None:
        """End the streams of principals whose access tokens have all expired.

        Their sessions go on with the next token, and calls that run are answered. What a token gave
        is forgotten when it is no longer accepted, which is some time after its end.
        """
        before, expired = tokens.grantees, tokens.expire()
        if expired:
            self._registry.cut_standing(lambda session: session.principal in expired)
            self._stateless.end_listens(lambda listen: listen.principal in expired)
            if self._rest is not None:
                self._rest.streams.end(lambda principal: principal not in expired)
        if not expired and tokens.grantees == before:
            return
        governance = self._junction.governance
        if governance is not None and governance.claim_grants is not None:
            in_use = {one.principal.grantee for one in self._junction.clients.sessions}
            in_use |= {call.caller.principal.grantee for call in self.running_calls()}
            governance.claim_grants.forget_others(in_use | tokens.grantees)

    def _is_revoked(self, bearer: TicketOwner) -> bool:
        return not self._is_allowed(Principal(bearer.principal, Role(bearer.role)))

    def _is_allowed(self, principal: Principal) -> bool:
        if principal == LOCAL_OWNER:
            return self._is_open_to_owner
        return self._keys.is_in_force(principal)

    async def _wait_for_calls(self, hurried: asyncio.Event) -> None:
        """Wait for running calls, at most DRAIN seconds."""
        clock = self._junction.clock
        end = clock.now() + DRAIN
        while self._count_calls() and clock.now() < end and not hurried.is_set():
            await clock.sleep(0.05)

    def _end_calls(self) -> None:
        """Answer what still runs: nobody waits for it any more."""
        why = "Junction is ending"
        if self._revocation is not None:
            self._revocation.close()
        self._registry.close()
        self._stateless.end_disallowed(lambda _: False, why)
        if self._rest is not None:
            self._rest.calling.end(lambda _: False, why)

    def _count_calls(self) -> int:
        others = self._stateless.calls
        if self._rest is not None:
            others += len(self._rest.calling)
        return others + sum(len(session.calls) for session in self._junction.clients.sessions)
