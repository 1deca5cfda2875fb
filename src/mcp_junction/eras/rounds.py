"""Rounds: the questions in a stateless answer, put to a client that can be asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import INTERNAL_ERROR
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Kind, Outcome

Ask = Callable[[str, Raw], Awaitable[Outcome]]


async def fulfilled(requests: Raw | None, ask: Ask) -> dict[str, Raw] | Outcome:
    """The client's answers by the server's keys, or why there are none.

    A server that only wants to be called again asks nothing. A client that refuses one question
    ends the call: there is no way to tell the server so.
    """
    try:
        asked = [(key, *_read(raw)) for key, raw in frames.members(requests or b"").items()]
    except FrameError as error:
        words = f"the server's questions make no sense: {error}"
        return outcomes.failed(INTERNAL_ERROR, words, Delivery.EXECUTED)
    answers = await asyncio.gather(*(ask(method, params) for _, method, params in asked))
    refused = next((answer for answer in answers if answer.kind is not Kind.RESULT), None)
    if refused is not None:
        return refused
    return {key: Raw(answer.payload) for (key, _, _), answer in zip(asked, answers, strict=True)}


def _read(raw: Raw) -> tuple[str, Raw]:
    request = frames.members(raw)
    method = frames.text(request.get("method"))
    if method is None:
        raise FrameError(INTERNAL_ERROR, "a question has no method")
    return method, request.get("params") or Raw(b"{}")
