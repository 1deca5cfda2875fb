"""The adapters: one for each pair of client era and server era, and one for subscriptions.

Where both are of one era the call passes as it is; only a stateless server's state is sealed into a
ticket, which is good for this call alone and once, and the id of its task, which is good for this
client alone. A handshake server may ask a stateless client something in the middle of a call: the
client is then answered with the question, and the call is parked (``parked.py``). A stateless
server asks a handshake client by its answer: the questions are put to the client at once, and the
server is called again with what the client says, until it answers. Which adapter a call takes is
decided in ``links.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final

from msgspec import Raw
from msgspec.structs import replace

from mcp_junction.calls.attempt import Attempt, timeout_of
from mcp_junction.calls.call import Call, answer_with
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.methods import ASKING, OF_TASKS
from mcp_junction.catalog.items import Route
from mcp_junction.eras.parked import ParkedCall, ParkedCalls, Question
from mcp_junction.eras.resume import (
    NO_STATE,
    Resume,
    continuation_of,
    in_stateless_era,
    owner_of,
    read_answers,
    state_text,
)
from mcp_junction.eras.tickets import Continuation, SealedTask, server_ref
from mcp_junction.errors import FrameError, RequestStateError
from mcp_junction.protocol import encode, envelope, frames, param_headers
from mcp_junction.protocol.versions import INTERNAL_ERROR, INVALID_PARAMS, LOG_LEVELS, STATELESS
from mcp_junction.tasks import TaskScope, wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import RESULT, SUSPENDED, Delivery, Outcome
from mcp_junction.upstream.upstream import Upstream

_HAS_NAME_HEADER: Final = ASKING | OF_TASKS
"""The methods whose target is repeated in a header."""
_MAX_ROUNDS: Final = 32
_MAX_QUESTIONS: Final = 64
_NO_TASK: Final = "there is no such task"
_USED: Final = "this requestState was used before, or has expired"

Ask = Callable[[str, Raw], Coroutine[Any, Any, Outcome]]


# -- one era


class HandshakeAdapter:
    """Takes calls from handshake clients to handshake servers."""

    attempt = Attempt

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Awaitable[Outcome]:
        return attempt.fly(link, attempt.params(), b"", self._loop)


class StatelessAdapter:
    """Takes calls from stateless clients to stateless servers."""

    attempt = Attempt

    def __init__(self, parked_calls: ParkedCalls, deadlines: Deadlines) -> None:
        self._parked_calls = parked_calls
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._adapt = self._seal_outcome

    def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Awaitable[Outcome]:
        call, params = attempt.call, attempt.params()
        if call.resumed_state is not None:
            params["requestState"] = call.resumed_state
        is_local = upstream.definition.transport == "stdio"
        headers = b"" if is_local else headers_for(attempt, upstream)
        if call.method in OF_TASKS:
            return self._send_of_task(attempt, link, params, headers)
        return attempt.fly(link, params, headers, self._loop, self._adapt)

    async def _send_of_task(
        self, attempt: Attempt, link: Link, params: dict[str, Raw], headers: bytes
    ) -> Outcome:
        """Send a request about a task, and give the client its own id of it back."""
        outcome = await attempt.fly(link, params, headers, self._loop)
        if outcome.kind is not RESULT:
            return outcome
        return replace(outcome, payload=_with_client_task(attempt, outcome.payload))

    def _seal_outcome(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        """Seal what the client gets to keep: the state of a question, the id of a task."""
        if outcome.kind is not RESULT or attempt.call.method not in ASKING:
            return outcome
        payload = outcome.payload
        kind = envelope.result_type(payload)
        if kind == envelope.INPUT_REQUIRED:
            return attempt.finish(self._seal_state(attempt, payload))
        if kind == envelope.TASK:
            return replace(outcome, payload=self._seal_task(attempt, payload))
        return outcome

    def _seal_task(self, attempt: Attempt, payload: Raw | bytes) -> Raw | bytes:
        """The server goes on with the call as a task: seal the id that the client is given."""
        members = frames.members(payload)
        task = frames.text(members.get("taskId"))
        if task is None:
            return payload
        call, route = attempt.call, attempt.route
        server = server_ref(route.upstream.definition)
        made = SealedTask(task, server, call.address.kind.name, route.pair.name)
        sealed = self._parked_calls.seal.seal_task(made, call.user, call.caller.endpoint.name)
        members["taskId"] = Raw(encode.dumps(sealed))
        return encode.dumps(members)

    def _seal_state(self, attempt: Attempt, payload: Raw | bytes) -> Outcome:
        """The server asks something: seal the state that it wants back with the answer."""
        call, members = attempt.call, frames.members(payload)
        state, text = members.get("requestState"), None
        if state == NO_STATE:
            del members["requestState"]
            state = None
        # Its intent ends here: the server has answered, and nothing works for the call.
        known = continuation_of(call, self._deadlines, None)
        if state is None and not _takes_along(call, known):
            return Outcome(SUSPENDED, encode.dumps(members), is_enveloped=True)
        if state is not None:
            try:
                text = state_text(state)
            except RequestStateError as error:
                server = attempt.route.pair.server
                why = f"server {server!r}: {error}"
                return outcomes.failed(INTERNAL_ERROR, why, Delivery.EXECUTED, server=server)
        ticket = self._parked_calls.issue_ticket(owner_of(call, attempt.route), text, known)
        members["requestState"] = Raw(encode.dumps(ticket))
        return Outcome(SUSPENDED, encode.dumps(members), is_enveloped=True)


def _takes_along(call: Call, known: Continuation) -> bool:
    """Whether the next request of a call has to know what this one was."""
    was_counted = call.is_resume or call.grant is not None
    return bool(was_counted or known.claim or known.passed_by or known.fallback)


class SubscriptionAdapter:
    """Subscribes on the server's own link, which all subscribers share."""

    attempt = Attempt

    async def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Outcome:
        current = upstream.current
        if current is not None:
            current.users.note(attempt.principal)
        is_new = attempt.call.method == "resources/subscribe"
        change = upstream.subscribe if is_new else upstream.unsubscribe
        return attempt.finish(await change(attempt.route.pair.name))


def _with_client_task(attempt: Attempt, payload: Raw | bytes) -> Raw | bytes:
    """Put the client's sealed id of a task in place of the server's."""
    members = frames.members(payload)
    if "taskId" not in members:
        return payload
    members["taskId"] = Raw(encode.dumps(attempt.call.name))
    return encode.dumps(members)


def headers_for(attempt: Attempt, upstream: Upstream) -> bytes:
    """The headers that repeat parts of a request to a stateless server over HTTP."""
    if upstream.definition.transport != "http" or attempt.call.method not in _HAS_NAME_HEADER:
        return b""
    route = attempt.route
    if not route.headers:
        return route.name_header
    arguments = attempt.call.params.get("arguments") or b"{}"
    return route.name_header + param_headers.header_lines(route.headers, arguments)


# -- from stateless clients to handshake servers


class ParkingAttempt(Attempt):
    """An attempt whose server may ask: the first question makes a ParkedCall of it.

    Hardly any call is asked something; until then it is an attempt like any other.
    """

    is_asked: ClassVar[bool] = False
    suspend: Callable[[ParkingAttempt, ParkedCall, asyncio.Future[Outcome]], None] | None = None
    """Answers the client with the first question; the future is what its request waits for."""

    @property
    def session(self) -> object:
        """Each call of a stateless client is a conversation of its own for a handshake server."""
        return self

    def park(self, method: str, params: Raw, answer: Callable[[Outcome], None]) -> Question | None:
        """Take the first question; the parked call takes the others."""
        call, flight = self.call, self.flight
        assert flight is not None, "a server is called before it asks"
        assert self.suspend is not None
        askable: frozenset[str] = call.caller.questions if call.method in ASKING else frozenset()
        parked = ParkedCall(call.user, askable, flight=flight, waiting=self)
        parked.suspend = partial(self.suspend, self, parked)
        flight.caller = parked
        return parked.park(method, params, answer)


class StatelessToHandshakeAdapter:
    """Takes calls from stateless clients to handshake servers."""

    attempt = ParkingAttempt

    def __init__(self, resume: Resume, tasks: TaskScope) -> None:
        self._resume = resume
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._suspend = self._begin_suspending

    def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Awaitable[Outcome]:
        assert type(attempt) is ParkingAttempt
        attempt.suspend = self._suspend
        call, params = attempt.call, attempt.params()
        if call.has_plain_meta:  # as nearly all have
            del params["_meta"]
        else:
            envelope.remove_envelope(params)
        if "requestState" in params or "inputResponses" in params or call.method in OF_TASKS:
            refused = _refuse(attempt, params)
            if refused is not None:
                return answer_with(attempt.finish(refused))
        level = call.log_level
        if level is not None and upstream.log_level != LOG_LEVELS[level]:
            return self._send_with_level(attempt, upstream, link, params, LOG_LEVELS[level])
        return attempt.fly(link, params, b"", self._loop, _adapt_error)

    async def _send_with_level(
        self, attempt: Attempt, upstream: Upstream, link: Link, params: dict[str, Raw], level: str
    ) -> Outcome:
        """Have the server log what the call wants to hear; what others want not is dropped."""
        await wait_unless(attempt.call.ending, upstream.set_log_level(level))
        return await attempt.fly(link, params, b"", self._loop, _adapt_error)

    def _begin_suspending(
        self, attempt: ParkingAttempt, parked: ParkedCall, waiting: asyncio.Future[Outcome]
    ) -> None:
        self._tasks.spawn(self._suspend_call(attempt, parked, waiting))

    async def _suspend_call(
        self, attempt: ParkingAttempt, parked: ParkedCall, waiting: asyncio.Future[Outcome]
    ) -> None:
        """Answer the request that waits with what the server asks, or how the call ended."""
        await asyncio.sleep(0)  # questions that come together are asked together
        outcome = await self._resume.wait(attempt, parked)
        if not waiting.done():
            waiting.set_result(outcome)


def _adapt_error(_: object, outcome: Outcome) -> Outcome:
    return in_stateless_era(outcome)


def _refuse(attempt: Attempt, params: dict[str, Raw]) -> Outcome | None:
    """Remove params that only stateless servers take; return why a call cannot be made."""
    if attempt.call.method in OF_TASKS:
        return outcomes.failed(INVALID_PARAMS, _NO_TASK, Delivery.NOT_SENT)
    if params.pop("requestState", None) is not None:  # of a server that was stateless then
        return outcomes.failed(INVALID_PARAMS, _USED, Delivery.NOT_SENT)
    try:
        read_answers(params.pop("inputResponses", None))
    except RequestStateError as error:
        return outcomes.failed(INVALID_PARAMS, str(error), Delivery.NOT_SENT)
    return None


# -- from handshake clients to stateless servers


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
    if len(questions) > _MAX_QUESTIONS:
        words = f"the server asks {len(questions)} questions at once; {_MAX_QUESTIONS} may be"
        return outcomes.failed(INTERNAL_ERROR, words, Delivery.EXECUTED)
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
