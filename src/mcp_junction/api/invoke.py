"""``POST /api/v1/mcp/invoke``: call a tool on behalf of an agent, governed and on record."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from mcp_junction.api.calling import RestRequest
from mcp_junction.api.carrying import CORRELATION_HEADER, read_carried, watch_client
from mcp_junction.api.errors import McpError, field_error
from mcp_junction.api.invocations import describe_end
from mcp_junction.api.requests import Ref
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    AnyRequest,
    Context,
    caller,
    mcp_error_responses,
    read_body,
    to_model,
)
from mcp_junction.errors import FrameError, RequestError
from mcp_junction.protocol import frames
from mcp_junction.protocol.envelope import is_tool_error
from mcp_junction.upstream.outcome import OutcomeKind
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import Router, post

_CARRIED: Final = (
    "agent_id",
    "correlation_id",
    "ticket_id",
    "task_id",
    "idempotency_key",
    "token",
    "timeout_ms",
)


class Invocation(msgspec.Struct, forbid_unknown_fields=True):
    """A tool to call, and what is to be known about the call."""

    server_id: Annotated[Ref, Meta(description="Id or name.", examples=["context7"])]
    tool_name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1_000,
            description="The server's own name of the tool.",
            examples=["search"],
        ),
    ]
    params: Annotated[
        dict[str, Any],
        Meta(description="The arguments of the tool.", examples=[{"query": "async"}]),
    ] = {}
    agent_id: Annotated[
        str | None,
        Meta(
            description="The agent that it is made for, under its grants: by administrators, who"
            " may leave it out, and orchestrators, who may not.",
            examples=["agent-001"],
        ),
    ] = None
    correlation_id: Annotated[
        str | None,
        Meta(description="Made if it is left out; returned always.", examples=["req-12345"]),
    ] = None
    idempotency_key: Annotated[
        str | None,
        Meta(
            description="A call with the same key and arguments runs once.",
            examples=["idemp-67890"],
        ),
    ] = None
    ticket_id: Annotated[str | None, Meta(examples=["ticket-abc"])] = None
    task_id: Annotated[str | None, Meta(examples=["task-xyz"])] = None
    token: Annotated[
        str | None, Meta(description="The token of the grant, if it wants one presented.")
    ] = None
    timeout_ms: Annotated[
        int | None,
        Meta(description="When the call ends, whatever its attempts have left.", examples=[10_000]),
    ] = None
    requested_at: Annotated[
        datetime | None,
        Meta(
            description="When the caller asked, by its own clock. Nothing depends on it.",
            examples=["2025-01-16T10:30:00Z"],
        ),
    ] = None


class InvocationResult(msgspec.Struct):
    """How a call ended."""

    correlation_id: str
    success: Annotated[
        bool, Meta(description="False also when the tool itself says that it failed.")
    ]
    result: Annotated[dict[str, Any] | None, Meta(description="The tool's own, as it is.")]
    error: McpError | None
    attempts: int
    latency_ms: float
    delivery: Annotated[
        str | None,
        Meta(description="`not_sent`, `unknown` (it may have run) or `executed`."),
    ]
    completed_at: Annotated[str, Meta(examples=["2025-01-16T10:30:00.000Z"])]


@post(
    "/invoke",
    status_code=200,
    opt=needs(Right.CALL, Invocation),
    responses=mcp_error_responses(
        "INVALID_ARGUMENTS",
        "APPROVAL_REQUIRED",
        "SIGN_IN_NEEDED",
        "DENIED",
        "TOOL_NOT_FOUND",
        "TOOL_DISABLED",
        "IDEMPOTENCY_CONFLICT",
        "RATE_LIMITED",
        "EXECUTION_FAILED",
        "CIRCUIT_OPEN",
        "SERVER_UNAVAILABLE",
        "TIMEOUT",
        has_body=True,
    ),
    summary="Call a tool on behalf of an agent",
    description="Checked against the agent's grants and the tool's schema, limited, retried where"
    " that is safe, and on record. A tool's own error is a result with `success` false. An error"
    " answer has the same members, with `error` and no `result`.",
)
async def invoke_tool(request: AnyRequest, context: Context) -> Response[InvocationResult]:
    body, value = await read_body(request)
    asked = to_model(value, Invocation)
    carried = read_carried(request, {name: getattr(asked, name) for name in _CARRIED})
    try:
        arguments = frames.members(body).get("params", Raw(b"{}"))
    except FrameError:
        raise field_error("$", "is not usable JSON") from None
    wanted = RestRequest(
        caller(request),
        asked.tool_name,
        asked.server_id,
        arguments,
        watch_client(request),
        carried,
        is_invoke=True,
    )
    end = await context.calling.run(wanted)
    told: dict[str, Any] = {"correlation_id": end.call.correlation_id}
    headers = {CORRELATION_HEADER: end.call.correlation_id}
    if end.outcome.kind is not OutcomeKind.RESULT:
        error = context.invocation_errors.make(wanted, end)
        told |= {"success": False, "result": None, **describe_end(end), **error.context}
        raise RequestError(error.code, error.detail, told, {**error.headers, **headers})
    payload = end.outcome.payload
    shown = {
        **told,
        "success": not is_tool_error(payload),
        "result": Raw(bytes(payload)),
        "error": None,
        **describe_end(end),
    }
    content: Any = msgspec.json.encode(shown)
    return Response(content, headers=headers)


ROUTES = Router("/api/v1/mcp", route_handlers=[invoke_tool], tags=["governed calls"])
