"""Routes that call a tool: ``POST /api/v1/tools/call`` and ``POST /api/v1/mcp/invoke``.

The first gives the result as it is, with ``metadata``; the second is for agents, governed and on
record. Both run in ``calling.py``; what is answered without a result is made in ``call_errors.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from mcp_junction.api.calling import RestOutcome, RestRequest
from mcp_junction.api.conventions import (
    AnyRequest,
    Context,
    caller,
    error_responses,
    mcp_error_responses,
    read_body,
    to_model,
)
from mcp_junction.api.errors import McpError, field_error
from mcp_junction.api.models import format_time
from mcp_junction.api.requests import Ref, ToolCall
from mcp_junction.api.rights import Right, needs
from mcp_junction.calls.call import Carried
from mcp_junction.errors import FrameError, RequestError
from mcp_junction.listener.acceptance import accept_fields, find_carrying
from mcp_junction.protocol import frames
from mcp_junction.protocol.envelope import is_tool_error
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream.outcome import OutcomeKind
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import Router, post

OURSELVES: Final = "junction"
CORRELATION_HEADER: Final = "x-correlation-id"


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
    asked, arguments = to_model(value, ToolCall), _read_arguments(body, "arguments")
    carried, watch = _read_carried(request), _watch_client(request)
    wanted = RestRequest(caller(request), asked.name, asked.server_id, arguments, watch, carried)
    end = await context.calling.run(wanted)
    call, errors = end.call, context.calling.errors
    if end.outcome.kind is not OutcomeKind.RESULT:
        raise await errors.make(call, end.outcome, asked.name)
    reached = None if call.route is None else errors.find_server(call.route.pair.server)
    content: Any = _with_metadata(end, reached)
    return Response(content, headers={CORRELATION_HEADER: call.correlation_id})


def _with_metadata(end: RestOutcome, server: ServerRecord | None) -> bytes:
    """The result with one more member; its other bytes stay as they are.

    ``server`` is the one that answered; None is Junction itself.
    """
    sent, payload = end.call.sent_at or end.ended, bytes(end.outcome.payload)
    told = CallMetadata(
        routed_to=OURSELVES if server is None else server.name,
        server_id=None if server is None else server.id,
        routing_time_ms=round((sent - end.began) * 1000, 3),
        execution_time_ms=round((end.ended - sent) * 1000, 3),
    )
    try:
        members = frames.members(payload)
    except FrameError:
        context = {"delivery": "executed"}
        words = "the server's answer is not an object"
        raise RequestError("EXECUTION_FAILED", words, context) from None
    if "metadata" in members:  # a server's own: ours stands, and holds it
        own = {**msgspec.to_builtins(told), "own": members["metadata"]}
        return msgspec.json.encode({**members, "metadata": own})
    tail = b'"metadata":' + msgspec.json.encode(told) + b"}"
    head = payload.rstrip()[:-1]
    return head + (b"," if members else b"") + tail


# -- invoke

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
    wanted = RestRequest(
        caller(request),
        asked.tool_name,
        asked.server_id,
        _read_arguments(body, "params"),
        _watch_client(request),
        _read_carried(request, {name: getattr(asked, name) for name in _CARRIED}),
        is_invoke=True,
    )
    end = await context.calling.run(wanted)
    told: dict[str, Any] = {"correlation_id": end.call.correlation_id}
    headers = {CORRELATION_HEADER: end.call.correlation_id}
    if end.outcome.kind is not OutcomeKind.RESULT:
        error = context.calling.errors.make_for_invoke(
            end.call, end.outcome, asked.tool_name, asked.server_id
        )
        told |= {"success": False, "result": None, **_describe_end(end), **error.context}
        raise RequestError(error.code, error.detail, told, {**error.headers, **headers})
    payload = end.outcome.payload
    shown = {
        **told,
        "success": not is_tool_error(payload),
        "result": Raw(bytes(payload)),
        "error": None,
        **_describe_end(end),
    }
    content: Any = msgspec.json.encode(shown)
    return Response(content, headers=headers)


def _describe_end(end: RestOutcome) -> dict[str, Any]:
    """Return what every answer says about a call, whether it has a result or not."""
    outcome = end.outcome
    delivery = outcome.delivery.value if outcome.delivery is not None else "executed"
    return {
        "attempts": outcome.attempts,
        "latency_ms": round((end.ended - end.began) * 1000, 3),
        "delivery": delivery,
        "completed_at": format_time(time.time()),
    }


# -- what both read of a request


def _read_arguments(body: bytes, name: str) -> Raw:
    """Return the arguments of a call, under this name in the body, as they were written."""
    try:
        return frames.members(body).get(name, Raw(b"{}"))
    except FrameError:
        raise field_error("$", "is not usable JSON") from None


def _read_carried(
    request: AnyRequest, fields: Mapping[str, str | int | None] | None = None
) -> Carried:
    """Read what a request carries. Raises RequestError; its words repeat nothing of it."""
    given = [(bytes(name), bytes(value)) for name, value in request.scope["headers"]]
    try:
        return accept_fields(fields or {}, find_carrying(given, dict(given)))
    except FrameError as error:
        problems = [{"path": "$", "message": error.message}]
        raise RequestError("VALIDATION_ERROR", error.message, {"problems": problems}) from None


def _watch_client(request: AnyRequest) -> Callable[[Callable[[], None]], None]:
    """Return what takes a function to call when the client of a request leaves."""
    exchange: Any = request.scope.get("exchange")

    def watch(gone: Callable[[], None]) -> None:
        if exchange is not None:
            exchange.when_gone = gone

    return watch


ROUTES = Router(
    "/api/v1",
    route_handlers=[
        Router("/tools", route_handlers=[call_tool], tags=["tools"]),
        Router("/mcp", route_handlers=[invoke_tool], tags=["governed calls"]),
    ],
)
