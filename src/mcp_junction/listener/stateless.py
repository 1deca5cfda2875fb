"""StatelessDispatcher: what each method of a stateless-era client leads to.

Every request says everything about its sender; what it says is checked here, and against the HTTP
headers that repeat it where there are any. Lists are answered inline, a routed request becomes a
Call, ``subscriptions/listen`` stays. Which kind of wire the answer goes on it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Wire
from mcp_junction.calls.methods import ASKING, COMPLETE, OF_TASKS, Address, address
from mcp_junction.calls.visit import Visit
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.kinds import BY_LIST, TOOLS, Kind
from mcp_junction.errors import CursorError, FrameError, StateError
from mcp_junction.listener import agreement
from mcp_junction.listener.agreement import Headers
from mcp_junction.listener.backend import Backend
from mcp_junction.listener.introductions import Introductions
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames, param_headers
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.merge import cursor_in
from mcp_junction.protocol.versions import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    SERVER_INFO_KEY,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
)
from mcp_junction.sessions.listen import Listen, Wanted
from mcp_junction.sessions.visitor import Visitor
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_ROUTED: Final = ASKING | OF_TASKS | {COMPLETE}
_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
_MAX_WATCHED: Final = 1000


class Reply(NamedTuple):
    """An answer, and the HTTP status that goes with it."""

    frame: bytes
    status: int = 200
    state: bytes = b""
    """What the client is to come back with, if it is asked something; as JSON."""


Answer = Reply | Coroutine[Any, Any, Reply | bytes | None]


class _Code(msgspec.Struct):
    code: int = 0


class StatelessDispatcher:
    """Takes requests that stand for themselves."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.introductions = Introductions(backend)
        self.running: dict[Hashable, Call | Listen] = {}
        """What the client can end before it is over, by the keys that fronts gave it."""
        self.listens: dict[Listen, asyncio.Future[None]] = {}
        info = {"name": backend.settings.name, "version": backend.settings.version}
        self._server_info = encode.dumps(info)

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return len(self.running) - len(self.listens)

    # -- a request

    def answer(
        self,
        principal: Principal,
        endpoint: Endpoint,
        frame: Frame,
        frame_id: bytes,
        key: Hashable,
        wire: Wire,
        headers: Headers | None = None,
    ) -> Answer:
        """The answer to a request, or the coroutine of it; whatever is wrong is answered.

        While it runs it is found by its key. ``headers`` are those that repeat it, if any.
        """
        try:
            params = frame.members()
            said = self.introductions.read(principal, endpoint, params.get("_meta"))
            if headers is not None:
                wrong = agreement.mismatch(headers, frame.method, said.version)
                if wrong is not None:
                    return refusal(frame_id, HEADER_MISMATCH, wrong)
            visitor = said.visitor
            if visitor is None:
                return _other_version(frame_id, params["_meta"])
            if frame.method not in _ROUTED:
                return self._own(visitor, frame_id, frame, params, key, wire)
            target = address(frame.method, params)
            if headers is not None and (
                self._backend.snapshot.catalog.is_marked
                or not agreement.is_plainly_named(headers, target.name)
            ):
                wrong = self._contradicted(visitor, frame.method, target, params, headers)
                if wrong is not None:
                    return refusal(frame_id, HEADER_MISMATCH, wrong)
            call = self.running[key] = Visit(
                visitor,
                self._backend.snapshot,
                frame.method,
                target,
                params,
                wire,
                said.progress_token,
                level=said.level,
                is_bare=said.is_bare,
            )
            return self._run(key, frame_id, call)
        except FrameError as error:
            return refusal(frame_id, error.code, f"{frame.method}: {error}")

    def _own(
        self,
        visitor: Visitor,
        frame_id: bytes,
        frame: Frame,
        params: dict[str, Raw],
        key: Hashable,
        wire: Wire,
    ) -> Answer:
        if frame.method in BY_LIST:
            return self._list(visitor, frame_id, BY_LIST[frame.method], params)
        if frame.method == "server/discover":
            return self._discover(visitor, frame_id)
        if frame.method == "subscriptions/listen":
            return self._listen(visitor, frame_id, params, key, wire)
        return refusal(frame_id, METHOD_NOT_FOUND, f"no method {frame.method[:100]!r}")

    # -- what we answer ourselves

    def _discover(self, visitor: Visitor, frame_id: bytes) -> Answer:
        if self._backend.is_settled:
            return self._discovered(visitor, frame_id)
        return self._when_settled(self._discovered, visitor, frame_id)

    def _discovered(self, visitor: Visitor, frame_id: bytes) -> Reply:
        found: dict[str, Any] = {
            "supportedVersions": STATELESS_VERSIONS,
            "capabilities": self._backend.capabilities(visitor.endpoint),
        }
        payload = encode.dumps(found)
        return Reply(encode.ready_with(frame_id, payload, self._tail()))

    def _list(
        self, visitor: Visitor, frame_id: bytes, kind: Kind, params: dict[str, Raw]
    ) -> Answer:
        try:
            cursor = cursor_in(params)
        except CursorError as error:
            return refusal(frame_id, INVALID_PARAMS, str(error))
        if self._backend.is_settled:
            return self._page(visitor, frame_id, kind, cursor)
        return self._when_settled(self._page, visitor, frame_id, kind, cursor)

    async def _when_settled(self, then: Callable[..., Reply], *given: Any) -> Reply:
        await self._backend.settled()
        return then(*given)

    def _page(self, visitor: Visitor, frame_id: bytes, kind: Kind, cursor: str | None) -> Reply:
        catalog = self._backend.snapshot.catalog
        try:
            page = catalog.listed(visitor.spelling, kind, visitor.endpoint).page(cursor)
        except CursorError as error:
            return refusal(frame_id, INVALID_PARAMS, str(error))
        return Reply(encode.ready_with(frame_id, page, self._tail()))

    def _tail(self) -> bytes:
        """What ends every result of ours: its type, how long it keeps and for whom, who says it."""
        settings = self._backend.settings
        scope = b"private" if settings.separator is None else b"public"
        return (b',"resultType":"complete","ttlMs":%d,"cacheScope":"%b","_meta":{"%b":%b}}') % (
            settings.list_ttl_ms,
            scope,
            SERVER_INFO_KEY.encode(),
            self._server_info,
        )

    # -- calls

    def _contradicted(
        self,
        visitor: Visitor,
        method: str,
        target: Address,
        params: dict[str, Raw],
        headers: Headers,
    ) -> str | None:
        """How headers contradict the name, or the arguments of a tool that wants some repeated."""
        wrong = agreement.misnamed(headers, method, target.name)
        catalog = self._backend.snapshot.catalog
        if wrong is not None or not catalog.is_marked or target.kind is not TOOLS:
            return wrong
        view = catalog.view(visitor.spelling, TOOLS, visitor.endpoint)
        route = view.find(target.name)
        if route is None or not route.headers:
            return None
        return param_headers.mismatch(route.headers, params.get("arguments") or b"{}", headers)

    async def _run(self, key: Hashable, frame_id: bytes, call: Call) -> Reply | bytes | None:
        try:
            if not self._backend.is_settled:
                await self._backend.offered(call)
            call.snapshot = self._backend.snapshot  # it may have come up since the call was read
            outcome = await call.snapshot.handle(call)
        finally:
            del self.running[key]
        if outcome.kind is outcomes.RESULT:
            return outcome.frame(frame_id)
        if outcome.kind is outcomes.CANCELLED:
            return None
        if outcome.kind is outcomes.SUSPENDED:
            state = frames.members(outcome.payload).get("requestState", b"")
            return Reply(outcome.frame(frame_id), state=frames.octets(state))
        return Reply(outcome.frame(frame_id), _status(outcome))

    # -- listening

    def _listen(
        self,
        visitor: Visitor,
        frame_id: bytes,
        params: dict[str, Raw],
        key: Hashable,
        wire: Wire,
    ) -> Answer:
        try:
            wanted = msgspec.json.decode(params.get("notifications") or b"", type=Wanted)
        except msgspec.MsgspecError as error:
            return refusal(frame_id, INVALID_PARAMS, f"notifications: {error}")
        if len(wanted.resource_subscriptions) > _MAX_WATCHED:
            return refusal(frame_id, INVALID_PARAMS, f"at most {_MAX_WATCHED} resources at once")
        listen = self.running[key] = Listen(visitor, frame_id, wanted, wire)
        ended = self.listens[listen] = asyncio.get_running_loop().create_future()
        return self._listened(key, listen, wanted, ended)

    async def _listened(
        self, key: Hashable, listen: Listen, wanted: Wanted, ended: asyncio.Future[None]
    ) -> Reply | None:
        try:
            if wanted.resource_subscriptions and not self._backend.is_settled:
                await self._backend.settled()
            uris = await self._backend.listening(listen, wanted.resource_subscriptions)
            honoured = msgspec.structs.replace(wanted, resource_subscriptions=tuple(uris))
            listen.acknowledge(honoured)
            self._backend.acknowledged(listen)
            await ended
        finally:
            del self.listens[listen], self.running[key]
            self._backend.listened(listen)
        return Reply(listen.result())

    def cancel(self, running: Call | Listen, reason: str) -> None:
        """The client wants it no more."""
        if isinstance(running, Listen):
            self._unlisten(running)
        else:
            running.cancel(reason)

    def withdraw(self, state: bytes, reason: str) -> None:
        """The client will not come back with what it was asked."""
        try:
            self._backend.lot.withdraw(frames.text(state) or "", reason)
        except StateError:
            pass  # a server's own, and none of ours

    def _unlisten(self, listen: Listen) -> None:
        """Nobody hears any more, or we are to say no more."""
        ended = self.listens.get(listen)
        if ended is not None and not ended.done():
            ended.set_result(None)

    # -- the end

    def drain(self) -> None:
        """End every listen as the protocol has it; calls finish."""
        for listen in list(self.listens):
            self._unlisten(listen)

    def end(self, is_allowed: Callable[[Principal], bool], reason: str) -> None:
        """End what runs for whoever is no longer let in."""
        for running in list(self.running.values()):
            if isinstance(running, Listen):
                if not is_allowed(running.principal):
                    self._unlisten(running)
            elif not is_allowed(running.caller.principal):
                running.drop(reason)


def refusal(
    frame_id: bytes, code: int, message: str, data: Mapping[str, Any] | None = None
) -> Reply:
    payload = encode.error_object(code, message, dict(data) if data is not None else None)
    return Reply(encode.error(frame_id, payload), _STATUS.get(code, 200))


def _other_version(frame_id: bytes, meta: Raw) -> Reply:
    version = frames.text(envelope.read(meta).version)
    if version is None:
        return refusal(frame_id, INVALID_PARAMS, "the protocol version must be a string")
    return unsupported(frame_id, version)


def unsupported(frame_id: bytes, version: str) -> Reply:
    """The answer to a version we do not speak, with those we do."""
    data = {"supported": STATELESS_VERSIONS, "requested": version[:100]}
    return refusal(frame_id, UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def ending(frame_id: bytes) -> Reply:
    """The answer to a request that comes too late."""
    payload = encode.error_object(
        SERVER_UNAVAILABLE, "Junction is ending", {"delivery": "not_sent"}
    )
    return Reply(encode.error(frame_id, payload), 503)


def _status(outcome: Outcome) -> int:
    if outcome.kind is not outcomes.Kind.ERROR:
        return 200
    try:
        code = msgspec.json.decode(outcome.payload, type=_Code).code
    except msgspec.MsgspecError:
        return 200
    return _STATUS.get(code, 200)
