"""UrlQuestions: asks clients to have a person open a page of ours, in the way that each can be.

A client of 2026-07-28 that opens links gets ``input_required``, and its call is made when it comes
back; one of 2025-11-25 gets the error that names the link, and is told when that was used. All
others keep the error that they would get. What is asked: ``sign_in.py``, ``approval_questions.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import ASKING
from mcp_junction.catalog.items import Route
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import owner_of
from mcp_junction.eras.tickets import Continuation
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import STATELESS, URL_ELICITATION, URL_ELICITATION_REQUIRED
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.outcome import SUSPENDED, Outcome

_TOLD_WITHIN: Final = 600.0
read_error = msgspec.json.Decoder(dict[str, Any]).decode
"""Reads the error of an outcome."""


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

    def __init__(self, parked_calls: ParkedCalls, tasks: TaskScope) -> None:
        self._parked_calls = parked_calls
        self._tasks = tasks
        self._told: set[tuple[int, str, str]] = set()

    def ask(self, call: Call, route: Route, refusal: Outcome, question: PageQuestion) -> Outcome:
        """Return how a refused call ends for its client."""
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
        error = read_error(refusal.payload)
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
        if key in self._told or not hasattr(caller, "notify"):
            return

        async def tell() -> None:
            try:
                async with asyncio.timeout(_TOLD_WITHIN):
                    await question.wait()
            except TimeoutError:
                return
            finally:
                self._told.discard(key)
            caller.notify(URL_ELICITATION, encode.dumps({"elicitationId": elicitation_id}))

        self._told.add(key)
        self._tasks.spawn(tell())
