"""The adapter from handshake clients to stateless servers.

Such a server asks by its answer. Its questions are put to the client at once, and it is called
again with what the client says, until it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import Raw

from mcp_junction.calls.attempt import Attempt, timeout_of
from mcp_junction.calls.call import Call
from mcp_junction.catalog.items import Route
from mcp_junction.eras.same_era import headers_for
from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.versions import INTERNAL_ERROR, INVALID_PARAMS, STATELESS
from mcp_junction.tasks import TaskScope, wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome
from mcp_junction.upstream.upstream import Upstream

_MAX_ROUNDS: Final = 32

Ask = Callable[[str, Raw], Coroutine[Any, Any, Outcome]]


class HandshakeToStatelessAdapter:
    """Takes calls from handshake clients to stateless servers."""

    attempt = Attempt

    async def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Outcome:
        return attempt.finish(await self._call_and_ask(attempt, upstream, link))

    async def _call_and_ask(self, attempt: Attempt, upstream: Upstream, link: Link) -> Outcome:
        call, params = attempt.call, attempt.params()
        own, sender = params.get("_meta"), call.caller.envelope
        params["_meta"] = sender if own is None else envelope.merge_meta(own, sender)
        headers = headers_for(attempt, attempt.route.upstream)
        for _ in range(_MAX_ROUNDS):
            outcome = await attempt.fly(link, params, headers)
            if outcome.kind is not RESULT:
                return outcome
            if envelope.result_type(outcome.payload) != envelope.INPUT_REQUIRED:
                return Outcome(RESULT, envelope.to_handshake_result(outcome.payload))
            members = frames.object_members(outcome.payload)
            answers = await ask_client(members.get("inputRequests"), call.ask, call.ending)
            if (ended := call.ended_by) is not None:
                return ended
            assert answers is not None, "only an ended call is given up"
            if isinstance(answers, Outcome):
                return answers
            again = await _link_after_question(call, upstream, link, attempt.route)
            if again is None:
                why = "it went while the client was asked"
                return call.ended_by or outcomes.link_lost(upstream.key, Delivery.UNKNOWN, why)
            link = again
            params["inputResponses"] = Raw(encode.dumps(answers))
            params.pop("requestState", None)
            if "requestState" in members:
                params["requestState"] = members["requestState"]
        return outcomes.failed(
            INVALID_PARAMS, f"the server asked {_MAX_ROUNDS} times in a row", Delivery.UNKNOWN
        )


async def wait_for_link(call: Call, upstream: Upstream, route: Route) -> Link | None:
    """Wait for a server's link where that makes sense, and no longer than an attempt may take."""
    if upstream.link is None:
        await wait_unless(call.ending, upstream.wait_for_link(timeout_of(call, route)))
    return upstream.link if call.ended_by is None else None


async def _link_after_question(
    call: Call, upstream: Upstream, link: Link, route: Route
) -> Link | None:
    """Find the link to go on with: any stateless one, because we hold the server's state."""
    if upstream.current is link:
        return link
    again = await wait_for_link(call, upstream, route)
    return again if again is not None and again.era is STATELESS else None


async def ask_client(
    requests: Raw | None, ask: Ask, ending: asyncio.Event
) -> dict[str, Raw] | Outcome | None:
    """Ask a client the questions of a stateless server; return its answers by their keys.

    A server that only wants to be called again asks nothing. A client that refuses one question
    ends the call: there is no way to tell the server so. When the call is ``ending``, nothing comes
    of it, and what is still asked is taken back.
    """
    try:
        questions = [(key, *_read(raw)) for key, raw in frames.members(requests or b"").items()]
    except FrameError as error:
        words = f"the server's questions make no sense: {error}"
        return outcomes.failed(INTERNAL_ERROR, words, Delivery.EXECUTED)
    if not questions:
        return {}
    tasks = TaskScope("questions of a call")
    try:
        ended = tasks.spawn(ending.wait())
        answers = {key: tasks.spawn(ask(method, params)) for key, method, params in questions}
        waiting = set(answers.values())
        while waiting:
            either = {ended, *waiting}
            done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if ended in done:
                return None
            waiting -= done
            for answer in done:
                given: Outcome = answer.result()
                if given.kind is not RESULT:
                    return given
        return {key: Raw(answer.result().payload) for key, answer in answers.items()}
    finally:
        await tasks.close()


def _read(raw: Raw) -> tuple[str, Raw]:
    request = frames.members(raw)
    method = frames.text(request.get("method"))
    if method is None:
        raise FrameError(INTERNAL_ERROR, "a question has no method")
    return method, request.get("params") or Raw(b"{}")
