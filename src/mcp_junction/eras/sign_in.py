"""SignInQuestions: asks clients to sign in to a server, in the way that each can be asked.

A client of 2026-07-28 that opens links gets ``input_required``, and its call goes on when it comes
back; one of 2025-11-25 gets the error that names the link, and is told when it was used. All others
get the link in the message of the error. Where all share one sign-in, only the operator is asked.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import ASKING
from mcp_junction.catalog.items import Route
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import SIGN_IN, owner_of
from mcp_junction.eras.tickets import Continuation
from mcp_junction.policy.principal import Role
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import (
    STATELESS,
    URL_ELICITATION,
    URL_ELICITATION_REQUIRED,
)
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import SUSPENDED, Outcome

_TOLD_WITHIN: Final = 600.0
_OPERATORS: Final = (Role.OWNER, Role.ADMIN)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class SignInQuestions:
    """Turns the refusal of a call into a question, for clients that can be asked."""

    def __init__(self, parked_calls: ParkedCalls, tasks: TaskScope) -> None:
        self._parked_calls = parked_calls
        self._tasks = tasks
        self._told: set[tuple[int, str]] = set()

    def ask(self, call: Call, outcome: Outcome) -> Outcome:
        """Return how a call ends for this client whose server needs a sign-in."""
        route, error = call.route, _decode(outcome.payload)
        link = error.get("data", {}).get("sign_in")
        if route is None or not link:
            return outcome
        definition = route.upstream.definition
        if not definition.is_per_agent and not self._is_operator(call):
            words = "all who call share its sign-in; ask whoever runs this gateway to sign in"
            plain = outcomes.sign_in_needed(definition.key, words)
            return plain.counted(outcome.attempts, outcome.target)
        if "url" not in call.caller.questions or call.method not in ASKING:
            return outcome
        question = {
            "mode": "url",
            "elicitationId": uuid4().hex,
            "url": link,
            "message": f"Sign in to {definition.key!r} to go on.",
        }
        if call.caller.era is STATELESS:
            return self._ask_in_result(call, route, question)
        self._tell_when_done(call, route, question["elicitationId"])
        data = {**error["data"], "elicitations": [question]}
        payload = encode.error_object(URL_ELICITATION_REQUIRED, error["message"], data)
        return msgspec.structs.replace(outcome, payload=payload)

    @staticmethod
    def _is_operator(call: Call) -> bool:
        return call.user.role in _OPERATORS and not call.user.acting_for

    def _ask_in_result(self, call: Call, route: Route, question: dict[str, str]) -> Outcome:
        ticket = self._parked_calls.issue_ticket(owner_of(call, route), SIGN_IN, Continuation())
        request = {"method": "elicitation/create", "params": question}
        result = {
            "resultType": "input_required",
            "inputRequests": {SIGN_IN: request},
            "requestState": ticket,
        }
        return Outcome(SUSPENDED, encode.dumps(result), is_enveloped=True)

    def _tell_when_done(self, call: Call, route: Route, elicitation_id: str) -> None:
        """Tell a client when its question was answered; of several for one server, of the last."""
        tokens, caller = route.upstream.tokens, call.caller
        key = id(caller), route.pair.server
        if tokens is None or key in self._told or not hasattr(caller, "notify"):
            return
        source = tokens.for_principal(call.user)

        async def tell() -> None:
            try:
                async with asyncio.timeout(_TOLD_WITHIN):
                    while source.is_signed_out:
                        await source.wait_for_change()
            except TimeoutError:
                return
            finally:
                self._told.discard(key)
            caller.notify(URL_ELICITATION, encode.dumps({"elicitationId": elicitation_id}))

        self._told.add(key)
        self._tasks.spawn(tell())
