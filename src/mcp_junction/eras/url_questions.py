"""UrlQuestions: asks clients to have a person open a page of ours, in the way that each can be.

A client of 2026-07-28 that opens links gets ``input_required``, and its call is made when it comes
back; one of 2025-11-25 gets the error that names the link, and is told when that was used. All
others keep the error that they would get. Two refusals are mended on a page: nobody is signed in to
the server, or a person has to approve the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import ASKING
from mcp_junction.catalog.items import Route
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import APPROVAL, SIGN_IN, owner_of
from mcp_junction.eras.tickets import Continuation
from mcp_junction.policy.principal import Role
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import (
    APPROVAL_NEEDED,
    STATELESS,
    URL_ELICITATION,
    URL_ELICITATION_REQUIRED,
)
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import SIGNED_OUT, SUSPENDED, Delivery, Outcome

if TYPE_CHECKING:  # the stdio mode does without it
    from mcp_junction.governance.approvals import Approvals

_TOLD_WITHIN: Final = 600.0
_OPERATORS: Final = (Role.OWNER, Role.ADMIN)
_read_error = msgspec.json.Decoder(dict[str, Any]).decode


class PageQuestion(msgspec.Struct, frozen=True):
    """A page that somebody is to open before a call can be made."""

    purpose: str
    """What for; it is sealed in the ticket with ``subject``."""
    subject: str
    url: str
    message: str
    wait: Callable[[], Awaitable[None]]
    """Returns when somebody has done what the page is for."""


class UrlQuestions:
    """Turns the refusal of a call into a question, for clients that can be asked."""

    def __init__(
        self, parked_calls: ParkedCalls, tasks: TaskScope, approvals: Approvals | None = None
    ) -> None:
        self._parked_calls = parked_calls
        self._tasks = tasks
        self._approvals = approvals
        self._told: dict[tuple[int, str, str], str] = {}
        """The id of the last question of each kind that a client is told the end of."""

    def ask(self, call: Call, refusal: Outcome) -> Outcome:
        """Return how a refused call ends for its client."""
        if call.route is None:
            return refusal
        if refusal.failure is SIGNED_OUT:
            return self._ask_to_sign_in(call, call.route, refusal)
        is_ours = refusal.delivery is Delivery.NOT_SENT and refusal.code == APPROVAL_NEEDED
        if self._approvals is not None and is_ours:
            return self._ask_for_approval(call, call.route, refusal, self._approvals)
        return refusal

    def _ask_to_sign_in(self, call: Call, route: Route, refusal: Outcome) -> Outcome:
        """Ask to sign in to the server; where all share one sign-in, only the operator is asked."""
        link = _read_error(refusal.payload).get("data", {}).get("sign_in")
        if not link:
            return refusal
        definition, tokens = route.upstream.definition, route.upstream.tokens
        is_down = tokens is not None and tokens.is_signed_out and route.upstream.link is None
        is_operator = call.user.role in _OPERATORS and not call.user.acting_for
        if (is_down or not definition.is_per_agent) and not is_operator:
            words = "all who call share its sign-in; ask whoever runs this gateway to sign in"
            plain = outcomes.sign_in_needed(definition.key, words)
            return plain.counted(refusal.attempts, refusal.target)
        source = None if tokens is None else tokens.for_principal(call.user)

        async def wait() -> None:
            while source is not None and source.is_signed_out:
                await source.wait_for_change()

        message = f"Sign in to {definition.key!r} to go on."
        question = PageQuestion(SIGN_IN, definition.key, link, message, wait)
        return self._ask(call, route, refusal, question)

    def _ask_for_approval(
        self, call: Call, route: Route, refusal: Outcome, approvals: Approvals
    ) -> Outcome:
        """Ask for approval. The link alone lets nobody decide: the page wants a key that may."""
        data = _read_error(refusal.payload).get("data", {})
        approval_id, url = data.get("approval_id"), data.get("url")
        if not approval_id or not url:
            return refusal
        message = f"Somebody has to approve the call of {route.pair.name!r}."
        wait = partial(approvals.wait_until_decided, approval_id)
        question = PageQuestion(APPROVAL, approval_id, url, message, wait)
        return self._ask(call, route, refusal, question)

    def _ask(self, call: Call, route: Route, refusal: Outcome, question: PageQuestion) -> Outcome:
        if "url" not in call.caller.questions or call.method not in ASKING:
            return refusal
        params = {
            "mode": "url",
            "elicitationId": uuid4().hex,
            "url": question.url,
            "message": question.message,
        }
        if call.caller.era is STATELESS:
            return self._ask_in_result(call, route, question, params)
        self._tell_when_done(call, question, params["elicitationId"])
        error = _read_error(refusal.payload)
        data = {**error.get("data", {}), "elicitations": [params]}
        payload = encode.error_object(URL_ELICITATION_REQUIRED, error["message"], data)
        return msgspec.structs.replace(refusal, payload=payload)

    def _ask_in_result(
        self, call: Call, route: Route, question: PageQuestion, params: dict[str, str]
    ) -> Outcome:
        ticket = self._parked_calls.issue_ticket(
            owner_of(call, route), question.subject, Continuation(), question.purpose
        )
        request = {"method": "elicitation/create", "params": params}
        result = {
            "resultType": "input_required",
            "inputRequests": {question.purpose: request},
            "requestState": ticket,
        }
        return Outcome(SUSPENDED, encode.dumps(result), is_enveloped=True)

    def _tell_when_done(self, call: Call, question: PageQuestion, elicitation_id: str) -> None:
        """Tell a client when its question was answered; of several alike, of the last."""
        caller = call.caller
        key = id(caller), question.purpose, question.subject
        if not hasattr(caller, "notify"):
            return
        is_awaited = key in self._told
        self._told[key] = elicitation_id
        if is_awaited:
            return

        async def tell() -> None:
            try:
                async with asyncio.timeout(_TOLD_WITHIN):
                    await question.wait()
            except TimeoutError:
                return
            finally:
                last = self._told.pop(key)
            caller.notify(URL_ELICITATION, encode.dumps({"elicitationId": last}))

        self._tasks.spawn(tell())
