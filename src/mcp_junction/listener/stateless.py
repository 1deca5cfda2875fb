"""StatelessDispatcher: handles each method of a stateless client.

Every request describes its sender; that is checked here, and compared with the HTTP headers that
repeat it where there are any. Lists are answered inline, a routed request becomes a Call,
``subscriptions/listen`` stays open. The answer goes to the request's ReplyChannel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Call, Carried, Channel, Handler
from mcp_junction.calls.methods import OF_TASKS, STATELESS_CALLS, CachedRoute
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import BY_LIST
from mcp_junction.errors import FrameError, RequestStateError
from mcp_junction.listener.answers import ListenerHost, OwnAnswers, ReplyOrLater
from mcp_junction.listener.client_cache import ClientCache, SenderInfo
from mcp_junction.listener.replies import (
    Accept,
    Headers,
    Reply,
    ReplyChannel,
    Rest,
    ResultWriter,
    finish,
    refusal,
    refuse_call,
    refuse_version,
    reply_to,
    take_over,
)
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode, frames, param_headers
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.requests import ClientRequest
from mcp_junction.protocol.versions import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_junction.sessions.stateless import Listen, StatelessClient, Wanted, subscribe_all
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome

_MAX_WATCHED: Final = 1000
_NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""What the Mcp-Name header repeats."""
_join: Final = b"".join  # ``frames.octets``, for the channel of every call


class StatelessDispatcher:
    """Answers the requests of stateless clients."""

    def __init__(self, backend: ListenerHost, accept: Accept | None = None) -> None:
        """``accept`` takes out what requests carry for us; without it, that is passed on."""
        self._backend = backend
        self._accept = accept
        self._answers = OwnAnswers(backend)
        self.client_cache = ClientCache(backend)
        self.running: dict[Hashable, Call | Listen] = {}
        """The calls and listens that are not over, by the keys of their listeners."""
        self.listens: dict[Listen, asyncio.Future[None]] = {}
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
        carried, method = NOTHING_CARRIED, frame.method
        try:
            params = frame.known if type(frame) is ClientRequest else frame.members()
            meta, last = params.get("_meta"), self.client_cache.last
            if (
                meta == last.meta
                and principal is last.principal
                and endpoint is last.endpoint
                and channel.headers is None
            ):
                sender = last.sender  # most often it is the same one again, and carries nothing
            else:
                carried = self._take_carried(method, params, channel)
                sender = self.client_cache.read(principal, endpoint, params.get("_meta"))
            if (client := sender.client) is None or method not in STATELESS_CALLS:
                return self._answer_own(sender, frame_id, method, params, key, channel, headers)
            snapshot, name = self._backend.snapshot, params.get("name")
            spelling, scope, route_cache = client.spelling, client.scope, snapshot.route_cache
            cached = name and route_cache.get((spelling, scope, method, _join((name,))))
            if not cached:
                cached = route_cache.find(snapshot.catalog, spelling, scope, method, params)
            if headers is not None:
                _check_headers(headers, sender.version, cached, params)
        except FrameError as error:
            return self._refuse(channel, frame_id, method, error, carried)
        address, route = cached.address, cached.route
        token, level, is_plain = sender.progress_token, sender.level, sender.has_plain_meta
        call = self.running[key] = Call(
            client, snapshot, method, address, params, channel, token, route, level, is_plain
        )
        if self._accept is not None:
            take_over(call, carried, self._backend.quotas, channel)
        handle = snapshot.handlers[method]
        if not self._backend.is_settled:
            handle = partial(self._handle_when_offered, headers, sender.version)
        return self._run(key, frame_id, call, channel, handle)

    def _take_carried(self, method: str, params: dict[str, Raw], channel: ReplyChannel) -> Carried:
        """Take out what a request carries for us, before a cache sees it. Raises FrameError."""
        if self._accept is None:
            return NOTHING_CARRIED
        return self._accept(params, channel.headers if method in STATELESS_CALLS else None)

    def _refuse(
        self,
        channel: ReplyChannel,
        frame_id: bytes,
        method: str,
        error: FrameError,
        carried: Carried,
    ) -> Rest:
        is_told = self._accept is not None and method in STATELESS_CALLS
        words = f"{method[:100]}: {error}"
        return refuse_call(channel, frame_id, error.code, words, carried if is_told else None)

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
            _check_method(headers, sender.version, method)
        client = sender.client
        if client is None:
            reply: ReplyOrLater = refuse_version(frame_id, params["_meta"])
        elif method in BY_LIST:
            reply = self._answers.list(client, frame_id, BY_LIST[method], params)
        elif method == "server/discover":
            reply = self._answers.discover(client, frame_id)
        elif method == "subscriptions/listen":
            reply = self._listen(client, frame_id, params, key, channel)
        else:
            reply = refusal(frame_id, METHOD_NOT_FOUND, f"no method {method[:100]!r}")
        return finish(channel, frame_id, reply)

    # -- calls

    async def _run(
        self, key: Hashable, frame_id: bytes, call: Call, channel: ReplyChannel, handle: Handler
    ) -> None:
        try:
            outcome = await handle(call)
        finally:
            del self.running[key]
        if outcome.kind is RESULT:
            if outcome.is_enveloped:  # a stateless server's own stays as it is
                frame = encode.result(frame_id, outcome.payload)
            else:
                frame = self._results.result(call.method, frame_id, outcome)
            rest = channel.end(frame)
        else:
            reply = reply_to(frame_id, outcome, channel.correlation_id)
            rest = channel.end_with(frame_id, reply)
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
                _check_headers(headers, version, cached, call.params)
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
    ) -> ReplyOrLater:
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
                await self._backend.wait_until_settled(listen.scope)
            done = await subscribe_all(
                listen, self._backend.snapshot, wanted.resource_subscriptions
            )
            uris = tuple(uri for uri, why in done.items() if why is None)
            refused = {uri: why for uri, why in done.items() if why is not None}
            honoured = msgspec.structs.replace(wanted, resource_subscriptions=uris)
            listen.acknowledge(honoured, refused)
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
        self.end_listens(lambda _: True)

    @property
    def running_calls(self) -> list[Call]:
        """The calls that are not over."""
        return [one for one in self.running.values() if not isinstance(one, Listen)]

    def end_listens(self, is_over: Callable[[Listen], bool]) -> None:
        """End the listens for which ``is_over`` is true, with their result."""
        for listen in [one for one in self.listens if is_over(one)]:
            self._end_listen(listen)

    def end_disallowed(self, is_allowed: Callable[[Principal], bool], reason: str) -> None:
        """End what runs for principals that are no longer allowed."""
        for running in list(self.running.values()):
            if isinstance(running, Listen):
                if not is_allowed(running.principal):
                    self._end_listen(running)
            elif not is_allowed(running.caller.principal):
                running.drop(reason)


# -- the headers that repeat what a body says


def _check_headers(
    headers: Headers, version: bytes, cached: CachedRoute, params: dict[str, Raw]
) -> None:
    """Compare headers with the routed request that they repeat. Raises FrameError."""
    get = headers.get
    if cached.plain_headers is not None:  # written as nearly all write them
        method, name = cached.plain_headers
        if (
            get(b"mcp-name") == name
            and get(b"mcp-method") == method
            and get(b"mcp-protocol-version") == version
        ):
            return
    _check_method(headers, version, cached.method)
    _check_name(headers, cached.method, cached.address.name)
    if cached.headers:
        arguments = params.get("arguments") or b"{}"
        wrong = param_headers.find_mismatch(cached.headers, arguments, headers)
        if wrong is not None:
            raise FrameError(HEADER_MISMATCH, wrong)


def _check_method(headers: Headers, version: bytes, method: str) -> None:
    """Compare the headers that every request has with its body. Raises FrameError."""
    if headers.get(b"mcp-protocol-version") != version:
        words = "the MCP-Protocol-Version header is not the version in params._meta"
        raise FrameError(HEADER_MISMATCH, words)
    if headers.get(b"mcp-method") != method.encode():
        raise FrameError(HEADER_MISMATCH, "the Mcp-Method header is not the method of the body")


def _check_name(headers: Headers, method: str, name: str) -> None:
    """Compare the header that repeats the target. Raises FrameError."""
    value = headers.get(b"mcp-name")
    key = _NAMED.get(method)
    if key is None and value is not None and method in OF_TASKS:
        key = "taskId"  # an extension's: the header must be right, but need not be there
    if key is not None and (value is None or param_headers.decode_value(value) != name):
        raise FrameError(HEADER_MISMATCH, f"the Mcp-Name header is not params.{key}")
