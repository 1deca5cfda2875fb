"""ServerListen: the one ``subscriptions/listen`` stream kept open to a stateless server.

It brings what a server of the handshake era sends by itself: that a list, or a subscribed resource,
has changed. When the subscriptions change, a new stream is opened, and the old one closed once the
new one is acknowledged. A stream that ends is opened again; what may have been missed is reported
as a renewal. A server that refuses the stream is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SUBSCRIPTION_KEY,
    UNSUPPORTED_VERSION,
)
from mcp_junction.resilience import backoff
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import TaskScope, resolve, wait_for_any, wait_until_set
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.handshake import ConnectPolicy, Greeting
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

log = logging.getLogger("mcp_junction.upstream")

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_LISTS: Final = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}
_FIRST_WAIT = 2.0
_ACKNOWLEDGE_WAIT = 10.0
_STEADY = 10.0
"""Seconds after which a stream counts as stable."""
_MAX_FAILURES = 8
_FINAL = (METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_VERSION)
_DONE = outcomes.result(b"{}")

_Request = tuple[str, asyncio.Future[Outcome]]
"""A URI to subscribe to, empty for the end of a subscription; and the future for the outcome."""


class _ListenStream:
    """One stream on the wire."""

    def __init__(self, link: Link, uris: frozenset[str], params: bytes) -> None:
        self.uris = uris
        self.acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flight = new_flight("subscriptions/listen")
        self.flight.params = params
        link.send(self.flight)

    @property
    def is_over(self) -> bool:
        return self.flight.future.done()

    def close(self, why: str = "another one takes its place") -> None:
        self.flight.abandon(outcomes.cancelled(why, Delivery.UNKNOWN), why)


class ServerListen:
    """The subscriptions of one server, over its connections, and the stream that serves them."""

    def __init__(
        self,
        server: str,
        meta: dict[str, Raw],
        clock: Clock,
        on_renewed: Callable[[], None],
        policy: ConnectPolicy,
        *,
        lists: bool,
    ) -> None:
        """``lists``: whether to listen for changes of the server's lists, too."""
        self.server = server
        self._meta = meta
        self._clock = clock
        self._on_renewed = on_renewed
        self._wants_lists = lists
        self._lists: dict[str, bool] = {}
        self._wanted: set[str] = set()
        self._requests: list[_Request] = []
        self._stream: _ListenStream | None = None
        self._opening: _ListenStream | None = None
        self._refused_uris: frozenset[str] | None = None
        """The subscriptions of the last stream that could not be opened."""
        self._was_open = False
        self._missed_changes = False
        self._refusal: Outcome | None = None
        self._changed = asyncio.Event()
        self._tried = asyncio.Event()
        self._tasks = TaskScope(f"listening to {server}", policy.supervision)

    # -- with the link

    async def begin(self, link: Link, greeting: Greeting) -> None:
        """Listen on a link. Waits a little, so that no change of lists read later is missed."""
        self._lists = {}
        for capability, name in _LISTS.items() if self._wants_lists else ():
            declared = greeting.capabilities.get(capability)
            if isinstance(declared, dict) and declared.get("listChanged") is True:
                self._lists[name] = True
        self._refusal, self._refused_uris = None, None
        self._was_open = self._missed_changes = False
        self._tried.clear()
        self._tasks.supervise("listening", partial(self._run, link), is_vital=False)
        if not await wait_until_set(self._tried, _FIRST_WAIT):
            self._missed_changes = True

    async def end(self) -> None:
        """Stop listening, because the link ends."""
        await self._tasks.close()
        for stream in (self._stream, self._opening):
            if stream is not None:
                stream.close("the link ends")
        self._stream = self._opening = None
        self._answer_all(self._take_requests(), self._not_connected())

    def _not_connected(self) -> Outcome:
        return outcomes.unavailable(self.server, "it is not connected")

    # -- subscriptions

    async def add(self, uri: str) -> Outcome:
        """Subscribe to a resource; returns when the server has agreed or refused."""
        stream = self._stream
        if uri in self._wanted and stream is not None and uri in stream.uris:
            return _DONE
        self._wanted.add(uri)
        return await self._request(uri)

    async def remove(self, uri: str) -> Outcome:
        """End the subscription to a resource."""
        if uri in self._wanted:
            self._wanted.discard(uri)
            await self._request("")
        return _DONE

    async def _request(self, uri: str) -> Outcome:
        if self._refusal is not None or not self._tasks:
            self._wanted.discard(uri)
            return self._refusal or self._not_connected()
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._requests.append((uri, answer))
        self._changed.set()
        try:
            async with asyncio.timeout(_ACKNOWLEDGE_WAIT):
                return await answer
        except TimeoutError:
            self._wanted.discard(uri)
            return outcomes.timed_out(self.server, Delivery.UNKNOWN, _ACKNOWLEDGE_WAIT)

    def _take_requests(self) -> list[_Request]:
        requests, self._requests = self._requests, []
        return requests

    def _answer_all(self, requests: list[_Request], outcome: Outcome) -> None:
        for uri, answer in requests:
            if outcome.kind is not OutcomeKind.RESULT:
                self._wanted.discard(uri)
            resolve(answer, outcome)

    # -- notifications

    def receive(self, frame: Frame) -> Frame | None:
        """Handle what concerns the stream in a notification; return the rest, None if that is all.

        May raise FrameError.
        """
        params = frames.members(frame.params)
        meta = frames.members(params.get("_meta") or b"")
        stream_id = meta.pop(SUBSCRIPTION_KEY, None)
        if frame.method == ACKNOWLEDGED:
            self._acknowledge(bytes(stream_id or b"").strip(b'"'), params.get("notifications"))
            return None
        if stream_id is None:
            return frame
        if meta:
            params["_meta"] = Raw(encode.dumps(meta))
        else:
            del params["_meta"]
        rest = Raw(encode.dumps(params)) if params else frames.NOTHING
        return msgspec.structs.replace(frame, params=rest)

    def _acknowledge(self, wire_id: bytes, honoured: Raw | None) -> None:
        stream = self._opening
        if stream is None or stream.acknowledged.done():
            return
        if wire_id and wire_id != stream.flight.wire_id:
            return
        listed = frames.members(honoured or b"").get("resourceSubscriptions")
        try:
            uris = msgspec.json.decode(listed or b"[]", type=list[str])
        except msgspec.MsgspecError:
            uris = []
        stream.uris &= frozenset(uris)
        stream.acknowledged.set_result(None)

    # -- the stream

    async def _run(self, link: Link) -> None:
        failures = 0
        while not link.closed.done():
            self._changed.clear()
            outcome = await self._open_stream(link) if self._needs_stream() else None
            self._tried.set()
            if outcome is not None and self._stream is None:
                failures += 1
                if self._is_final(outcome, failures):
                    self._give_up(outcome, link)
                    return
                self._missed_changes = True
            else:
                if self._missed_changes:
                    self._missed_changes = False
                    self._on_renewed()
                opened = self._clock.now()
                if not await self._wait_for_end():
                    continue
                self._stream, self._missed_changes = None, True
                failures = 0 if self._clock.now() - opened > _STEADY else failures + 1
            wait = backoff.delay(failures, backoff.PATIENT_AFTER, random.random)
            await self._clock.sleep(wait)

    def _needs_stream(self) -> bool:
        """Whether a stream has to be opened for the subscriptions; if not, requests are done."""
        wanted = frozenset(self._wanted)
        if self._stream is None:
            is_needed = bool(self._lists or wanted)
        else:
            is_needed = wanted not in (self._stream.uris, self._refused_uris)
        if not is_needed:
            self._answer_all(self._take_requests(), _DONE)
        return is_needed

    async def _open_stream(self, link: Link) -> Outcome | None:
        """Open a stream for the subscriptions and close the old one; returns an error, or None."""
        requests, wanted = self._take_requests(), frozenset(self._wanted)
        notifications: dict[str, Any] = dict(self._lists)
        if wanted:
            notifications["resourceSubscriptions"] = sorted(wanted)
        params = encode.dumps({"notifications": notifications, "_meta": self._meta})
        self._opening = stream = _ListenStream(link, wanted, params)
        ends = stream.flight.future, link.closed
        await wait_for_any(stream.acknowledged, *ends, timeout=_ACKNOWLEDGE_WAIT)
        self._opening = None
        if not stream.acknowledged.done():
            outcome = self._explain_failure(stream)
            stream.close("it was not acknowledged")
            self._refused_uris = wanted
            self._answer_all(requests, outcome)
            return outcome
        self._was_open, self._refused_uris = True, None
        if self._stream is not None:
            self._stream.close()
        self._stream = stream
        self._wanted -= wanted - stream.uris
        for uri, answer in requests:
            words = f"server {self.server!r} does not tell of changes to {uri}"
            refused = outcomes.failed(INVALID_PARAMS, words, server=self.server)
            resolve(answer, _DONE if not uri or uri in stream.uris else refused)
        return None

    def _explain_failure(self, stream: _ListenStream) -> Outcome:
        if not stream.is_over:
            return outcomes.timed_out(self.server, Delivery.UNKNOWN, _ACKNOWLEDGE_WAIT)
        outcome = stream.flight.future.result()
        if outcome.kind is OutcomeKind.RESULT:
            return outcomes.failed(INVALID_REQUEST, "it ended the stream without a word")
        return outcome

    def _is_final(self, outcome: Outcome, failures: int) -> bool:
        is_refused = outcome.delivery is None and outcome.code in _FINAL
        return is_refused or (failures >= _MAX_FAILURES and not self._was_open)

    def _give_up(self, outcome: Outcome, link: Link) -> None:
        log.debug("server %r is not listened to: %s", self.server, outcome.message)
        self._refusal = outcome
        self._answer_all(self._take_requests(), outcome)
        if self._was_open:  # another server has taken its place, which has to be greeted
            link.mark_lost(f"it no longer lets us listen: {outcome.message}")

    async def _wait_for_end(self) -> bool:
        """Wait until the stream ends or the subscriptions change; whether it was the former."""
        changed = self._tasks.spawn(self._changed.wait())
        streams = () if self._stream is None else (self._stream.flight.future,)
        try:
            await wait_for_any(changed, *streams)
        finally:
            changed.cancel()
        return self._stream is not None and self._stream.is_over
