"""Results and questions in the shapes that the suite expects, and how a tool asks the client."""

from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

Context = ServerRequestContext[Any, Any]
Asking = types.CallToolRequestParams | types.GetPromptRequestParams
Reply = TypeVar("Reply", bound=BaseModel)

# One red pixel, and a WAV header without samples.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQAAAAA="

STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}


def is_modern(ctx: Context) -> bool:
    """Whether this request came in the era without a handshake."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def declares(ctx: Context, capability: str) -> bool:
    """Whether the client said that it can do this: `sampling`, `elicitation`, `roots`."""
    return getattr(ctx.session.client_capabilities, capability, None) is not None


def contents(*blocks: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks))


def text(message: str) -> types.CallToolResult:
    return contents(types.TextContent(text=message))


def failure(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)


def image() -> types.ImageContent:
    return types.ImageContent(data=PNG, mime_type="image/png")


def embedded(uri: str, mime_type: str, body: str) -> types.EmbeddedResource:
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=body)
    return types.EmbeddedResource(resource=resource)


def form(message: str, *, required: bool = True, **properties: Any) -> types.ElicitRequest:
    """Ask the user for these fields."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required else [],
    }
    params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
    return types.ElicitRequest(params=params)


def sampling(prompt: str) -> types.CreateMessageRequest:
    """Ask the client's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=100)
    return types.CreateMessageRequest(params=params)


def roots() -> types.ListRootsRequest:
    """Ask for the client's roots."""
    return types.ListRootsRequest(params=types.RequestParams())


def needs(state: str | None = None, **questions: types.InputRequest) -> types.InputRequiredResult:
    """2026-07-28: answer with questions; the client calls again with what they brought."""
    return types.InputRequiredResult(input_requests=questions or None, request_state=state)


def reply_to(key: str, params: Asking, kind: type[Reply]) -> Reply | None:
    """2026-07-28: what the client brought for the question `key`, if it did."""
    reply = (params.input_responses or {}).get(key)
    return reply if isinstance(reply, kind) else None


async def ask(ctx: Context, question: types.ServerRequest, kind: type[Reply]) -> Reply:
    """Handshake era: ask while the call waits, on the call's own stream."""
    own_stream = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(question, kind, metadata=own_stream)
