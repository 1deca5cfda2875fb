"""Rounds: the questions in a stateless answer, put to a client that can be asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import INTERNAL_ERROR
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

Ask = Callable[[str, Raw], Coroutine[Any, Any, Outcome]]


async def fulfilled(
    requests: Raw | None, ask: Ask, ending: asyncio.Event
) -> dict[str, Raw] | Outcome | None:
    """The client's answers by the server's keys, or why there are none.

    A server that only wants to be called again asks nothing. A client that refuses one question
    ends the call: there is no way to tell the server so. When the call is ``ending``, nothing comes
    of it, and what is still asked is taken back.
    """
    try:
        asked = [(key, *_read(raw)) for key, raw in frames.members(requests or b"").items()]
    except FrameError as error:
        words = f"the server's questions make no sense: {error}"
        return outcomes.failed(INTERNAL_ERROR, words, Delivery.EXECUTED)
    if not asked:
        return {}
    asking = TaskScope("questions of a call")
    try:
        ended = asking.spawn(ending.wait())
        answers = {key: asking.spawn(ask(method, params)) for key, method, params in asked}
        waiting = set(answers.values())
        while waiting:
            either = {ended, *waiting}
            done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if ended in done:
                return None
            waiting -= done
            for answer in done:
                given: Outcome = answer.result()
                if given.kind is not OutcomeKind.RESULT:
                    return given
        return {key: Raw(answer.result().payload) for key, answer in answers.items()}
    finally:
        await asking.close()


def _read(raw: Raw) -> tuple[str, Raw]:
    request = frames.members(raw)
    method = frames.text(request.get("method"))
    if method is None:
        raise FrameError(INTERNAL_ERROR, "a question has no method")
    return method, request.get("params") or Raw(b"{}")
