"""How a server asks, in either era: the questions of one round, and their replies.

In the handshake era they are requests while the call waits; in 2026-07-28 the call ends with
`input_required`, and the client's next one brings the replies.
"""

from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from tests.conformance.offering.answers import (
    STRING,
    Context,
    ask,
    declares,
    form,
    is_modern,
    needs,
    reply_to,
    roots,
    sampling,
)

Question = tuple[types.InputRequest, type[BaseModel]]
Replies = dict[str, Any]


class CannotAsk(Exception):
    """The client does not take such questions."""


def user(message: str) -> Question:
    return form(message, name=STRING), types.ElicitResult


def model(prompt: str) -> Question:
    return sampling(prompt), types.CreateMessageResult


def places() -> Question:
    return roots(), types.ListRootsResult


NEEDS = {
    types.ElicitResult: "elicitation",
    types.CreateMessageResult: "sampling",
    types.ListRootsResult: "roots",
}


async def answered(
    ctx: Context, params: Any, questions: dict[str, Question], state: str = "asked"
) -> Replies | types.InputRequiredResult:
    """The replies to all the questions, or what to answer the client with to get them."""
    for _, kind in questions.values():
        if not declares(ctx, NEEDS[kind]):
            raise CannotAsk(f"the client does not support {NEEDS[kind]}")
    if not is_modern(ctx):
        try:
            return {
                key: shown(await ask(ctx, request, kind))
                for key, (request, kind) in questions.items()
            }
        except MCPError as error:
            raise CannotAsk(str(error)) from error
    found = {key: reply_to(key, params, kind) for key, (_, kind) in questions.items()}
    if None in found.values():
        return needs(state, **{key: request for key, (request, _) in questions.items()})
    return {key: shown(reply) for key, reply in found.items()}


def shown(reply: Any) -> str:
    """A reply as a word or two, for the result of a tool."""
    if isinstance(reply, types.ElicitResult):
        return f"{reply.action} {(reply.content or {}).get('name')}"
    if isinstance(reply, types.CreateMessageResult):
        return f"{reply.model}: {getattr(reply.content, 'text', '')}"
    return " ".join(str(root.uri) for root in reply.roots)
