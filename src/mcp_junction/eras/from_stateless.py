"""The adapter from stateless clients to handshake servers.

Such a server may ask something in the middle of a call. The client is then answered with the
question, and the call is parked: its flight goes on, and the client's next request resumes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from msgspec import Raw

from mcp_junction.calls.attempt import Attempt
from mcp_junction.calls.methods import ASKING, OF_TASKS
from mcp_junction.eras.parked import ParkedCall, Question
from mcp_junction.eras.resume import Resume, in_stateless_era, read_answers
from mcp_junction.errors import RequestStateError
from mcp_junction.protocol import envelope
from mcp_junction.protocol.versions import INVALID_PARAMS, LOG_LEVELS
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome
from mcp_junction.upstream.upstream import Upstream

_NO_TASK = "there is no such task"
_USED = "this requestState was used before, or has expired"


class ParkingAttempt(Attempt):
    """An attempt whose server may ask: the first question makes a ParkedCall of it.

    Hardly any call is asked something; until then it is an attempt like any other.
    """

    is_asked: ClassVar[bool] = False
    parked: ParkedCall | None = None

    @property
    def session(self) -> object:
        """Each call of a stateless client is a conversation of its own for a handshake server."""
        return self

    def park(self, method: str, params: Raw, answer: Callable[[Outcome], None]) -> Question | None:
        """Take the first question; the parked call takes the others."""
        call, flight = self.call, self.flight
        assert flight is not None, "a server is called before it asks"
        askable: frozenset[str] = call.caller.questions if call.method in ASKING else frozenset()
        self.parked = ParkedCall(call.user, askable, flight=flight, waiting=self)
        flight.caller = self.parked
        return self.parked.park(method, params, answer)


class StatelessToHandshakeAdapter:
    """Takes calls from stateless clients to handshake servers."""

    attempt = ParkingAttempt

    def __init__(self, resume: Resume) -> None:
        self._resume = resume
        self._loop = asyncio.get_running_loop()

    async def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Outcome:
        assert isinstance(attempt, ParkingAttempt)
        call, params = attempt.call, attempt.params()
        if call.has_plain_meta:  # as nearly all have
            del params["_meta"]
        else:
            envelope.remove_envelope(params)
        if "requestState" in params or "inputResponses" in params or call.method in OF_TASKS:
            refused = _refuse(attempt, params)
            if refused is not None:
                return attempt.finish(refused)
        level = call.log_level
        if level is not None and upstream.log_level != LOG_LEVELS[level]:
            # Messages below the call's own level are dropped when they come.
            await wait_unless(call.ending, upstream.set_log_level(LOG_LEVELS[level]))
        outcome = await attempt.fly(link, params, b"", self._loop)
        parked = attempt.parked
        if parked is None:
            return outcome if outcome.kind is RESULT else in_stateless_era(outcome)
        attempt.parked = None
        await asyncio.sleep(0)  # questions that come together are asked together
        return await self._resume.wait(attempt, parked)


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
