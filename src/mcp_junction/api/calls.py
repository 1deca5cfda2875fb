"""``POST /api/v1/tools/call``: call a tool; its result comes back as it is, with ``metadata``."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from mcp_junction.api.calling import RestReply, RestRequest
from mcp_junction.api.carrying import CORRELATION_HEADER, read_carried, watch_client
from mcp_junction.api.errors import field_error
from mcp_junction.api.requests import ToolCall
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    AnyRequest,
    Context,
    caller,
    error_responses,
    read_body,
    to_model,
)
from mcp_junction.errors import FrameError, RequestError
from mcp_junction.protocol import frames
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import Router, post

OURSELVES = "junction"


class CallMetadata(msgspec.Struct):
    """Where a call went, and how long it took. A tool of Junction's own has no ``server_id``."""

    routed_to: str
    server_id: str | None
    routing_time_ms: float
    execution_time_ms: float


class CallResult(msgspec.Struct):
    """The tool's own result, whatever else it has, with ``metadata`` added."""

    content: list[dict[str, Any]]
    metadata: CallMetadata
    isError: bool = False


@post(
    "/call",
    status_code=200,
    opt=needs(Right.CALL, ToolCall),
    responses=error_responses(
        "INVALID_ARGUMENTS",
        "TOOL_AMBIGUOUS",
        "APPROVAL_REQUIRED",
        "SIGN_IN_NEEDED",
        "DENIED",
        "TOOL_NOT_FOUND",
        "SERVER_NOT_FOUND",
        "IDEMPOTENCY_CONFLICT",
        "RATE_LIMITED",
        "EXECUTION_FAILED",
        "CIRCUIT_OPEN",
        "SERVER_UNAVAILABLE",
        "SERVER_CONNECTION_FAILED",
        "SESSION_NOT_FOUND",
        "TIMEOUT",
        has_body=True,
    ),
    summary="Call a tool",
    description="By `server.tool`; by a tool's own name with `server_id`; or by its own name alone"
    " if only one server has it. A tool's own error is a result with `isError`.",
)
async def call_tool(request: AnyRequest, context: Context) -> Response[CallResult]:
    body, value = await read_body(request)
    asked = to_model(value, ToolCall)
    try:
        arguments = frames.members(body).get("arguments", Raw(b"{}"))
    except FrameError:
        raise field_error("$", "is not usable JSON") from None
    carried, watch = read_carried(request), watch_client(request)
    wanted = RestRequest(caller(request), asked.name, asked.server_id, arguments, watch, carried)
    done = await context.calling(wanted)
    content: Any = _with_metadata(done)
    headers = {CORRELATION_HEADER: done.correlation_id}
    return Response(content, headers=headers)


def _with_metadata(done: RestReply) -> bytes:
    """The result with one more member; its other bytes stay as they are."""
    told = CallMetadata(
        routed_to=OURSELVES if done.server is None else done.server.name,
        server_id=None if done.server is None else done.server.id,
        routing_time_ms=round(done.routing * 1000, 3),
        execution_time_ms=round(done.execution * 1000, 3),
    )
    try:
        members = frames.members(done.payload)
    except FrameError:
        context = {"delivery": "executed"}
        words = "the server's answer is not an object"
        raise RequestError("EXECUTION_FAILED", words, context) from None
    if "metadata" in members:  # a server's own: ours stands, and holds it
        own = {**msgspec.to_builtins(told), "own": members["metadata"]}
        return msgspec.json.encode({**members, "metadata": own})
    tail = b'"metadata":' + msgspec.json.encode(told) + b"}"
    head = done.payload.rstrip()[:-1]
    return head + (b"," if members else b"") + tail


ROUTES = Router("/api/v1/tools", route_handlers=[call_tool], tags=["tools"])
