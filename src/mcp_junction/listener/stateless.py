"""StatelessDispatcher: handles each method of a stateless client.

Every request describes its sender; that is checked here, and compared with the HTTP headers that
repeat it where there are any. Lists are answered inline, a routed request becomes a Call,
``subscriptions/listen`` stays open. The answer goes to the request's ReplyChannel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Channel, Handler
from mcp_junction.calls.methods import READ, STATELESS_CALLS
from mcp_junction.calls.route_cache import CachedRoute
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import BY_LIST, ListKind
from mcp_junction.errors import FrameError, RequestStateError
from mcp_junction.listener import header_check
from mcp_junction.listener.answers import OwnAnswers
from mcp_junction.listener.client_cache import ClientCache, SenderInfo
from mcp_junction.listener.header_check import Headers
from mcp_junction.listener.host import ListenerHost
from mcp_junction.listener.replies import HTTP_STATUS, Reply, refusal, refuse_version
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.cycles import ID_KEY
from mcp_junction.protocol.envelope import ResultEnvelope, has_no_envelope, to_stateless_result
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.requests import ClientRequest
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_INFO_KEY,
    STATELESS_VERSIONS,
)
from mcp_junction.sessions.stateless import Listen, StatelessClient, Wanted
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import CANCELLED, RESULT, SUSPENDED, Delivery, Outcome

_MAX_WATCHED: Final = 1000
_join: Final = b"".join  # ``frames.octets``, for the channel of every call


Rest = Coroutine[Any, Any, None] | None
"""The coroutine that finishes an answer; None where it is complete."""


class ReplyChannel(Channel, Protocol):
    """Where one request is answered: messages before the answer, then the answer."""

    def end(self, frame: bytes) -> Rest:
        """Answer with a result, as nearly all are."""
        ...

    def end_with(self, frame_id: bytes, reply: Reply | None) -> Rest:
        """Answer with anything else; None where nobody waits for an answer."""
        ...


class ResultWriter:
    """Writes results of calls with the envelope of the stateless era around them."""

    def __init__(self, name: str, version: str) -> None:
        server = encode.dumps({"name": name, "version": version})
        self._envelope = ResultEnvelope(server)
        self._read_envelope = ResultEnvelope(server, b'"ttlMs":0,"cacheScope":"private",')

    def result(self, method: str, frame_id: bytes, outcome: Outcome) -> bytes:
        """Write a result as a frame; one of a stateless server stays as it is."""
        if outcome.is_enveloped:
            return encode.result(frame_id, outcome.payload)
        text = _join((outcome.payload,))
        envelope = self._envelope if method != READ else self._read_envelope
        if has_no_envelope(text):
            return encode.result_with_head(frame_id, envelope.ready, text)
        return encode.result(frame_id, to_stateless_result(text, envelope))


class StatelessDispatcher:
    """Answers the requests of stateless clients."""

    def __init__(self, backend: ListenerHost) -> None:
        self._backend = backend
        self._answers = OwnAnswers(backend)
        self.client_cache = ClientCache(backend)
        self.running: dict[Hashable, Call | Listen] = {}
        """The calls and listens that are not over, by the keys of their listeners."""
        self.listens: dict[Listen, asyncio.Future[None]] = {}
        info = {"name": backend.settings.name, "version": backend.settings.version}
        self._server_info = encode.dumps(info)
        self._results = ResultWriter(backend.settings.name, backend.settings.version)

    @property
    def calls(self) -> int:
        """How many calls are running."""
        return len(self.running) - len(self.listens)

    def usage_of(self, principal: Principal) -> QuotaUsage:
        return self._backend.quotas.of(principal)

    # -- a request

    def answer(
        self,
        principal: Principal,
        endpoint: Endpoint,
        frame: Frame,
        frame_id: bytes,
        key: Hashable,
        channel: ReplyChannel,
        headers: Headers | None = None,
    ) -> Rest:
        """Answer a request, or what is wrong with it; return what is left to do.

        ``key`` finds it while it runs. ``headers`` repeat its members, where there are any.
        """
        try:
            params = frame.known if type(frame) is ClientRequest else frame.members()
            meta, last = params.get("_meta"), self.client_cache.last
            if meta == last.meta and principal is last.principal and endpoint is last.endpoint:
                sender = last.sender  # most often it is the same one again
            else:
                sender = self.client_cache.read(principal, endpoint, meta)
            client, method = sender.client, frame.method
            if client is None or method not in STATELESS_CALLS:
                return self._answer_own(sender, frame_id, method, params, key, channel, headers)
            snapshot = self._backend.snapshot
            name = params.get("name")
            spelling, scope, route_cache = client.spelling, client.scope, snapshot.route_cache
            cached = name and route_cache.get((spelling, scope, method, _join((name,))))
            if not cached:
                cached = route_cache.find(snapshot.catalog, spelling, scope, method, params)
            if headers is not None:
                _compare(headers, sender.version, cached, params)
        except FrameError as error:
            words = f"{frame.method[:100]}: {error}"
            return channel.end_with(frame_id, refusal(frame_id, error.code, words))
        address, route = cached.address, cached.route
        token, level, is_plain = sender.progress_token, sender.level, sender.has_plain_meta
        call = self.running[key] = Call(
            client, snapshot, method, address, params, channel, token, route, level, is_plain
        )
        if self._backend.is_settled:
            handle = snapshot.handlers[method]
        else:
            handle = partial(self._handle_when_offered, headers, sender.version)
        return self._run(key, frame_id, call, channel, handle)

    def _answer_own(
        self,
        sender: SenderInfo,
        frame_id: bytes,
        method: str,
        params: dict[str, Raw],
        key: Hashable,
        channel: ReplyChannel,
        headers: Headers | None,
    ) -> Rest:
        """Answer a request that goes to no server."""
        if headers is not None:
            header_check.check(headers, sender.version, method)
        client = sender.client
        if client is None:
            reply: Reply | Coroutine[Any, Any, Reply] = refuse_version(frame_id, params["_meta"])
        elif method in BY_LIST:
            reply = self._list(client, frame_id, BY_LIST[method], params)
        elif method == "server/discover":
            reply = self._when_settled(self._discover, client, frame_id)
        elif method == "subscriptions/listen":
            reply = self._listen(client, frame_id, params, key, channel)
        else:
            reply = refusal(frame_id, METHOD_NOT_FOUND, f"no method {method[:100]!r}")
        if isinstance(reply, Reply):
            return channel.end_with(frame_id, reply)
        return _send_later(frame_id, reply, channel)

    # -- what we answer ourselves

    def _discover(self, client: StatelessClient, frame_id: bytes) -> Reply:
        found: dict[str, Any] = {
            "supportedVersions": STATELESS_VERSIONS,
            "capabilities": self._backend.summary.capabilities(client.scope),
        }
        payload = encode.dumps(self._answers.with_instructions(client, found))
        ours = b'"%b":%b' % (ID_KEY.encode(), encode.dumps(self._backend.summary.junction_id))
        return Reply(encode.compact_result_with(frame_id, payload, self._tail(ours)))

    def _list(
        self, client: StatelessClient, frame_id: bytes, kind: ListKind, params: dict[str, Raw]
    ) -> Reply | Coroutine[Any, Any, Reply]:
        try:
            cursor = self._answers.cursor(params)
        except FrameError as error:
            return refusal(frame_id, INVALID_PARAMS, error.message)
        meta = params.get("_meta")
        return self._when_settled(self._page, client, frame_id, kind, cursor, meta)

    def _when_settled(
        self, then: Callable[..., Reply], *given: Any
    ) -> Reply | Coroutine[Any, Any, Reply]:
        return then(*given) if self._backend.is_settled else self._wait_and_answer(then, *given)

    async def _wait_and_answer(self, then: Callable[..., Reply], *given: Any) -> Reply:
        await self._backend.wait_until_settled()
        return then(*given)

    def _page(
        self,
        client: StatelessClient,
        frame_id: bytes,
        kind: ListKind,
        cursor: str | None,
        meta: Raw | None,
    ) -> Reply:
        try:
            page, reachable = self._answers.page(client, kind, cursor, meta)
        except FrameError as error:
            return refusal(frame_id, INVALID_PARAMS, error.message)
        return Reply(encode.compact_result_with(frame_id, page, self._tail(reachable)))

    def _tail(self, ours: bytes) -> bytes:
        """Make the end of a result of ours: its type, its caching and our server info.

        Others may be given the same result only where neither names nor grants differ by client.
        ``ours`` is a further member of its ``_meta``, for other Junctions.
        """
        settings = self._backend.settings
        differs = settings.separator is None or self._backend.scopes.has_policy
        scope = b"private" if differs else b"public"
        return (b',"resultType":"complete","ttlMs":%d,"cacheScope":"%b","_meta":{"%b":%b%b}}') % (
            settings.list_ttl_ms,
            scope,
            SERVER_INFO_KEY.encode(),
            self._server_info,
            b"," + ours if ours else b"",
        )

    # -- calls

    async def _run(
        self, key: Hashable, frame_id: bytes, call: Call, channel: ReplyChannel, handle: Handler
    ) -> None:
        try:
            outcome = await handle(call)
        finally:
            del self.running[key]
        if outcome.kind is RESULT:
            rest = channel.end(self._results.result(call.method, frame_id, outcome))
        else:
            rest = channel.end_with(frame_id, _reply(frame_id, outcome))
        if rest is not None:
            await rest

    async def _handle_when_offered(
        self, headers: Headers | None, version: bytes, call: Call
    ) -> Outcome:
        """Handle a call that came before its server was up; its route is looked up again."""
        await self._backend.wait_for_offer(call)
        call.snapshot, call.route = self._backend.snapshot, None
        try:
            if headers is not None:
                caller, snapshot = call.caller, call.snapshot
                cached = snapshot.route_cache.find(
                    snapshot.catalog, caller.spelling, caller.scope, call.method, call.params
                )
                _compare(headers, version, cached, call.params)
        except FrameError as error:
            words = f"{call.method}: {error}"
            return outcomes.failed(error.code, words, Delivery.NOT_SENT)
        return await call.snapshot.handle(call)

    # -- listening

    def _listen(
        self,
        client: StatelessClient,
        frame_id: bytes,
        params: dict[str, Raw],
        key: Hashable,
        channel: Channel,
    ) -> Reply | Coroutine[Any, Any, Reply]:
        try:
            wanted = msgspec.json.decode(params.get("notifications") or b"", type=Wanted)
        except msgspec.MsgspecError as error:
            return refusal(frame_id, INVALID_PARAMS, f"notifications: {error}")
        if len(wanted.resource_subscriptions) > _MAX_WATCHED:
            return refusal(frame_id, INVALID_PARAMS, f"at most {_MAX_WATCHED} resources at once")
        listen = self.running[key] = Listen(client, frame_id, wanted, channel)
        ended = self.listens[listen] = asyncio.get_running_loop().create_future()
        return self._run_listen(key, listen, wanted, ended)

    async def _run_listen(
        self, key: Hashable, listen: Listen, wanted: Wanted, ended: asyncio.Future[None]
    ) -> Reply:
        try:
            if wanted.resource_subscriptions and not self._backend.is_settled:
                await self._backend.wait_until_settled()
            uris = await self._backend.relay.subscribe(
                listen, self._backend.snapshot, wanted.resource_subscriptions
            )
            honoured = msgspec.structs.replace(wanted, resource_subscriptions=tuple(uris))
            listen.acknowledge(honoured)
            self._backend.relay.add_listen(listen)
            await ended
        finally:
            del self.listens[listen], self.running[key]
            self._backend.relay.remove_listen(listen)
        return Reply(listen.result())

    def cancel(self, running: Call | Listen, reason: str) -> None:
        """The client wants it no more."""
        if isinstance(running, Listen):
            self._end_listen(running)
        else:
            running.cancel(reason)

    def withdraw(self, state: bytes, reason: str) -> None:
        """End a parked call whose client will not come back with answers."""
        try:
            self._backend.parked_calls.withdraw(frames.text(state) or "", reason)
        except RequestStateError:
            pass  # the state is a server's own, not a ticket of ours

    def _end_listen(self, listen: Listen) -> None:
        """End an open ``subscriptions/listen``."""
        ended = self.listens.get(listen)
        if ended is not None and not ended.done():
            ended.set_result(None)

    # -- the end

    def drain(self) -> None:
        """End every listen with its result; let calls finish."""
        for listen in list(self.listens):
            self._end_listen(listen)

    def end(self, is_allowed: Callable[[Principal], bool], reason: str) -> None:
        """End what runs for principals that are no longer allowed."""
        for running in list(self.running.values()):
            if isinstance(running, Listen):
                if not is_allowed(running.principal):
                    self._end_listen(running)
            elif not is_allowed(running.caller.principal):
                running.drop(reason)


def _compare(headers: Headers, version: bytes, cached: CachedRoute, params: dict[str, Raw]) -> None:
    """Compare headers with the routed request that they repeat. Raises FrameError."""
    if cached.plain_headers is not None and header_check.is_plain(
        headers, version, *cached.plain_headers
    ):
        return
    header_check.check(headers, version, cached.method)
    header_check.check_name(headers, cached.method, cached.address.name)
    if cached.headers:
        header_check.check_arguments(headers, cached.headers, params)


async def _send_later(
    frame_id: bytes, coming: Coroutine[Any, Any, Reply], channel: ReplyChannel
) -> None:
    rest = channel.end_with(frame_id, await coming)
    if rest is not None:
        await rest


def _reply(frame_id: bytes, outcome: Outcome) -> Reply | None:
    """Make the answer to a call that did not end with a result."""
    if outcome.kind is CANCELLED:
        return None
    if outcome.kind is SUSPENDED:
        state = frames.members(outcome.payload).get("requestState", b"")
        return Reply(outcome.frame(frame_id), state=frames.octets(state))
    return Reply(outcome.frame(frame_id), HTTP_STATUS.get(outcome.code, 200))
