"""ServerListen: the one ``subscriptions/listen`` kept open to a stateless server.

It brings what the handshake era sends of its own accord: that a list, or a resource someone wants
to hear of, has changed. When the wishes change, a new stream is opened, and the old one closed once
the new one is acknowledged. A stream that ends is opened again; what may have been missed is
reported as a renewal. A server that refuses to be listened to is left alone.
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
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.connect_policy import ConnectPolicy
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.hello import Greeting
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
_PATIENCE = 10.0
_STEADY = 10.0
_MAX_FAILURES = 8
_FINAL = (METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_VERSION)
_DONE = outcomes.result(b"{}")


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
    """What we want to hear of one server, across its lives, and the stream that brings it."""

    def __init__(
        self,
        server: str,
        meta: dict[str, Raw],
        clock: Clock,
        renewed: Callable[[], None],
        terms: ConnectPolicy,
        *,
        lists: bool,
    ) -> None:
        self._server = server
        self._meta = meta
        self._clock = clock
        self._renewed = renewed
        self._hears_lists = lists
        self._lists: dict[str, bool] = {}
        self._wanted: set[str] = set()
        self._asked: list[tuple[str, asyncio.Future[Outcome]]] = []
        self._stream: _ListenStream | None = None
        self._opening: _ListenStream | None = None
        self._in_vain: frozenset[str] | None = None
        self._was_open = False
        self._is_late = False
        self._refusal: Outcome | None = None
        self._news = asyncio.Event()
        self._tried = asyncio.Event()
        self._tasks = TaskScope(f"listening to {server}", terms.supervision)

    # -- life, with the link's

    async def begin(self, link: Link, greeting: Greeting) -> None:
        """Listen on a link. Waits a little, so that what is read afterwards cannot be outdated."""
        self._lists = self._offered(greeting) if self._hears_lists else {}
        self._refusal, self._in_vain = None, None
        self._was_open = self._is_late = False
        self._tried.clear()
        self._tasks.supervise("listening", partial(self._run, link), is_vital=False)
        try:
            await asyncio.wait_for(self._tried.wait(), _FIRST_WAIT)
        except TimeoutError:
            self._is_late = True

    async def end(self) -> None:
        """The link is gone, or goes."""
        await self._tasks.close()
        for stream in (self._stream, self._opening):
            if stream is not None:
                stream.close("the link ends")
        self._stream = self._opening = None
        self._answer(self._taken(), outcomes.unavailable(self._server, "it is not connected"))

    @staticmethod
    def _offered(greeting: Greeting) -> dict[str, bool]:
        offered = {}
        for capability, word in _LISTS.items():
            declared = greeting.capabilities.get(capability)
            if isinstance(declared, dict) and declared.get("listChanged") is True:
                offered[word] = True
        return offered

    # -- wishes

    async def add(self, uri: str) -> Outcome:
        """Hear of a resource; returns when the server has agreed to tell, or will not."""
        stream = self._stream
        if uri in self._wanted and stream is not None and uri in stream.uris:
            return _DONE
        self._wanted.add(uri)
        return await self._wish(uri)

    async def remove(self, uri: str) -> Outcome:
        """Hear no more of a resource."""
        if uri not in self._wanted:
            return _DONE
        self._wanted.discard(uri)
        await self._wish("")
        return _DONE

    async def _wish(self, uri: str) -> Outcome:
        if self._refusal is not None or not self._tasks:
            self._wanted.discard(uri)
            return self._refusal or outcomes.unavailable(self._server, "it is not connected")
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._asked.append((uri, answer))
        self._news.set()
        try:
            return await asyncio.wait_for(answer, _PATIENCE)
        except TimeoutError:
            self._wanted.discard(uri)
            return outcomes.timed_out(self._server, Delivery.UNKNOWN, _PATIENCE)

    def _taken(self) -> list[tuple[str, asyncio.Future[Outcome]]]:
        asked, self._asked = self._asked, []
        return asked

    def _answer(self, asked: list[tuple[str, asyncio.Future[Outcome]]], outcome: Outcome) -> None:
        for uri, answer in asked:
            if outcome.kind is not OutcomeKind.RESULT:
                self._wanted.discard(uri)
            if not answer.done():
                answer.set_result(outcome)

    # -- what comes in

    def sort(self, frame: Frame) -> Frame | None:
        """What of a notification is for others. May raise FrameError."""
        params = frames.members(frame.params)
        meta = frames.members(params.get("_meta") or b"")
        stamp = meta.pop(SUBSCRIPTION_KEY, None)
        if frame.method == ACKNOWLEDGED:
            self._acknowledged(bytes(stamp or b"").strip(b'"'), params.get("notifications"))
            return None
        if stamp is None:
            return frame
        if meta:
            params["_meta"] = Raw(encode.dumps(meta))
        else:
            del params["_meta"]
        rest = Raw(encode.dumps(params)) if params else frames.NOTHING
        return msgspec.structs.replace(frame, params=rest)

    def _acknowledged(self, wire_id: bytes, honoured: Raw | None) -> None:
        stream = self._opening
        if stream is None or stream.acknowledged.done():
            return
        if wire_id and wire_id != stream.flight.wire_id:
            return
        told = frames.members(honoured or b"").get("resourceSubscriptions")
        try:
            uris = msgspec.json.decode(told or b"[]", type=list[str])
        except msgspec.MsgspecError:
            uris = []
        stream.uris &= frozenset(uris)
        stream.acknowledged.set_result(None)

    # -- the stream

    async def _run(self, link: Link) -> None:
        failures = 0
        while not link.closed.done():
            self._news.clear()
            outcome = await self._replace(link) if self._due() else None
            self._tried.set()
            if outcome is not None and self._stream is None:
                failures += 1
                if self._is_final(outcome, failures):
                    self._give_up(outcome, link)
                    return
                self._is_late = True
            else:
                self._catch_up()
                opened = self._clock.now()
                if not await self._ended():
                    continue
                self._stream, self._is_late = None, True
                failures = 0 if self._clock.now() - opened > _STEADY else failures + 1
            await self._pause(failures)

    def _catch_up(self) -> None:
        """If there was a time in which nothing was heard, say so, now that it is over."""
        if self._is_late:
            self._is_late = False
            self._renewed()

    def _due(self) -> bool:
        """Whether the stream there is, if there is one, is not the one that is wanted."""
        wanted = frozenset(self._wanted)
        if self._stream is None:
            is_due = bool(self._lists or wanted)
        else:
            is_due = wanted not in (self._stream.uris, self._in_vain)
        if not is_due:
            self._answer(self._taken(), _DONE)
        return is_due

    async def _replace(self, link: Link) -> Outcome | None:
        """Open the stream that is wanted, and close the other; the error when that cannot be."""
        asked, wanted = self._taken(), frozenset(self._wanted)
        notifications: dict[str, Any] = dict(self._lists)
        if wanted:
            notifications["resourceSubscriptions"] = sorted(wanted)
        params = encode.dumps({"notifications": notifications, "_meta": self._meta})
        self._opening = stream = _ListenStream(link, wanted, params)
        either: set[asyncio.Future[Any]] = {stream.acknowledged, stream.flight.future, link.closed}
        await asyncio.wait(either, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        self._opening = None
        if not stream.acknowledged.done():
            outcome = self._failure(stream)
            stream.close("it was not acknowledged")
            self._in_vain = wanted
            self._answer(asked, outcome)
            return outcome
        self._was_open, self._in_vain = True, None
        if self._stream is not None:
            self._stream.close()
        self._stream = stream
        self._wanted -= wanted - stream.uris
        self._agreed(asked, stream.uris)
        return None

    def _agreed(
        self, asked: list[tuple[str, asyncio.Future[Outcome]]], honoured: frozenset[str]
    ) -> None:
        for uri, answer in asked:
            if not answer.done():
                words = f"server {self._server!r} does not tell of changes to {uri}"
                refused = outcomes.failed(INVALID_PARAMS, words, server=self._server)
                answer.set_result(_DONE if not uri or uri in honoured else refused)

    def _failure(self, stream: _ListenStream) -> Outcome:
        if not stream.is_over:
            return outcomes.timed_out(self._server, Delivery.UNKNOWN, _PATIENCE)
        outcome = stream.flight.future.result()
        if outcome.kind is OutcomeKind.RESULT:
            return outcomes.failed(INVALID_REQUEST, "it ended the stream without a word")
        return outcome

    def _is_final(self, outcome: Outcome, failures: int) -> bool:
        if outcome.delivery is None and outcome.code in _FINAL:
            return True
        return failures >= _MAX_FAILURES and not self._was_open

    def _give_up(self, outcome: Outcome, link: Link) -> None:
        log.debug("server %r is not listened to: %s", self._server, outcome.message)
        self._refusal = outcome
        self._answer(self._taken(), outcome)
        if self._was_open:  # another server has taken its place: it has to be greeted anew
            link.mark_lost(f"it no longer lets us listen: {outcome.message}")

    async def _pause(self, failures: int) -> None:
        wait = backoff.delay(failures, backoff.PATIENT_AFTER, random.random)
        await self._clock.sleep(wait)

    async def _ended(self) -> bool:
        """Wait for the end of the stream, or for another wish; whether it was the former."""
        news = self._tasks.spawn(self._news.wait())
        either: set[asyncio.Future[Any]] = {news}
        if self._stream is not None:
            either.add(self._stream.flight.future)
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        return self._stream is not None and self._stream.is_over
