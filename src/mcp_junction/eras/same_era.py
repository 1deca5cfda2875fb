"""Adapters for a client and a server of one era: the call passes as it is.

Only a stateless server's state is sealed into a ticket, which is good for this call alone and once,
and the id of its task, which is good for this client alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from msgspec import Raw

from mcp_junction.calls.attempt import Attempt
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.methods import ASKING, OF_TASKS
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import NO_STATE, continuation_of, owner_of, state_text
from mcp_junction.eras.tickets import SealedTask, server_ref
from mcp_junction.errors import RequestStateError
from mcp_junction.protocol import encode, envelope, frames, param_headers
from mcp_junction.protocol.versions import INTERNAL_ERROR
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import RESULT, SUSPENDED, Delivery, Outcome
from mcp_junction.upstream.upstream import Upstream

_HAS_NAME_HEADER: Final = ASKING | OF_TASKS
"""The methods whose target is repeated in a header."""


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

    async def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Outcome:
        params = attempt.params()
        if attempt.call.resumed_state is not None:
            params["requestState"] = attempt.call.resumed_state
        outcome = await attempt.fly(link, params, headers_for(attempt, upstream), self._loop)
        if outcome.kind is not RESULT:
            return attempt.finish(outcome)
        payload = outcome.payload
        if attempt.call.method in ASKING:
            kind = envelope.result_type(payload)
            if kind == envelope.INPUT_REQUIRED:
                return attempt.finish(self._seal_state(attempt, payload))
            if kind == envelope.TASK:
                payload = self._seal_task(attempt, payload)
        elif attempt.call.method in OF_TASKS:
            payload = _with_client_task(attempt, payload)
        call = attempt.call
        return Outcome(RESULT, payload, None, call.attempts, attempt.route.canonical, True)

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
        members = frames.members(payload)
        state = members.get("requestState")
        if state is None:
            return Outcome(SUSPENDED, payload, is_enveloped=True)
        if state == NO_STATE:
            del members["requestState"]
        else:
            try:
                text = state_text(state)
            except RequestStateError as error:
                server = attempt.route.pair.server
                why = f"server {server!r}: {error}"
                return outcomes.failed(INTERNAL_ERROR, why, Delivery.EXECUTED, server=server)
            owner = owner_of(attempt.call, attempt.route)
            # Its intent ends here: the server has answered, and nothing works for the call.
            known = continuation_of(attempt.call, self._deadlines, None)
            ticket = self._parked_calls.issue_ticket(owner, text, known)
            members["requestState"] = Raw(encode.dumps(ticket))
        return Outcome(SUSPENDED, encode.dumps(members), is_enveloped=True)


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
