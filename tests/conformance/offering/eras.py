"""Makes the fixture a server of one era only, as if it had never heard of the other.

The SDK's server speaks both. A server of the handshake era alone refuses what carries the version
header of the other (over stdio the SDK's own loop for that era does the refusing); a server of
2026-07-28 alone refuses whatever does not carry that era's header or envelope.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

VERSION_HEADER = "mcp-protocol-version"


class Era(StrEnum):
    OLD = "old"
    NEW = "new"
    BOTH = "both"


# HTTP


def of_era(app: ASGIApp, era: Era) -> ASGIApp:
    """The same server, but refusing the other era."""
    if era is Era.OLD:
        return _refusing(app, _refuse_modern)
    if era is Era.NEW:
        return _refusing(app, _refuse_handshake)
    return app


def _refusing(app: ASGIApp, refuse: Any) -> ASGIApp:
    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            spoken = request.headers.get(VERSION_HEADER)
            refusal: Response | None = await refuse(request, spoken)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await app(scope, receive, send)

    return checked


async def _refuse_modern(request: Request, spoken: str | None) -> Response | None:
    if spoken is None or spoken in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    supported = ", ".join(HANDSHAKE_PROTOCOL_VERSIONS)
    message = f"Bad Request: Unsupported protocol version: {spoken} (supported: {supported})"
    error = {"code": types.INVALID_REQUEST, "message": message}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)


async def _refuse_handshake(request: Request, spoken: str | None) -> Response | None:
    if request.method != "POST":
        return Response(status_code=405, headers={"allow": "POST"})
    if spoken is not None and spoken not in HANDSHAKE_PROTOCOL_VERSIONS:
        return None  # the SDK checks the rest, and answers unknown versions
    message = json.loads(await request.body())
    requested = spoken or (message.get("params") or {}).get("protocolVersion") or "none"
    error = _unsupported(requested).model_dump(mode="json")
    return JSONResponse({"jsonrpc": "2.0", "id": message.get("id"), "error": error}, 400)


def _unsupported(requested: str) -> types.ErrorData:
    return types.ErrorData(
        code=types.UNSUPPORTED_PROTOCOL_VERSION,
        message="Unsupported protocol version",
        data={"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": requested},
    )


# stdio


async def serve_streams(server: Server, era: Era, read: Any, write: Any) -> None:
    """Serve one connection on the SDK's streams until the client leaves."""
    options = server.create_initialization_options()
    if era is Era.OLD:
        async with server.lifespan(server) as state:
            await serve_loop(server, read, write, lifespan_state=state, init_options=options)
    elif era is Era.NEW:
        async with _without_handshake(read, write) as enveloped:
            await server.run(enveloped, write, options)
    else:
        await server.run(read, write, options)


@asynccontextmanager
async def _without_handshake(read: Any, write: Any) -> AsyncIterator[Any]:
    """What arrives on `read`, less the requests without an envelope, which are answered here."""
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def sort() -> None:
        async with send:
            async for item in read:
                error = _stream_refusal(item)
                if error is None:
                    await send.send(item)
                else:
                    await write.send(SessionMessage(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sort)
        yield receive
        tasks.cancel_scope.cancel()


def _stream_refusal(item: SessionMessage | Exception) -> types.JSONRPCError | None:
    if isinstance(item, Exception) or not isinstance(item.message, types.JSONRPCRequest):
        return None
    request = item.message
    params = request.params or {}
    if request.method == "initialize":
        error = _unsupported(str(params.get("protocolVersion")))
    elif types.PROTOCOL_VERSION_META_KEY not in (params.get("_meta") or {}):
        error = types.ErrorData(code=types.INVALID_PARAMS, message="_meta lacks protocolVersion")
    else:
        return None
    return types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
