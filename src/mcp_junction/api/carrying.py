"""Reads what a REST request carries for its call beside the arguments: fields and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mcp_junction.api.routes import AnyRequest
from mcp_junction.calls.call import Carried
from mcp_junction.errors import FrameError, RequestError
from mcp_junction.listener.acceptance import accept_fields, find_carrying

CORRELATION_HEADER: Final = "x-correlation-id"


def read_carried(
    request: AnyRequest, fields: Mapping[str, str | int | None] | None = None
) -> Carried:
    """Read what a request carries. Raises RequestError; its words repeat nothing of it."""
    given = [(bytes(name), bytes(value)) for name, value in request.scope["headers"]]
    try:
        return accept_fields(fields or {}, find_carrying(given, dict(given)))
    except FrameError as error:
        problems = [{"path": "$", "message": error.message}]
        raise RequestError("VALIDATION_ERROR", error.message, {"problems": problems}) from None


def watch_client(request: AnyRequest) -> Callable[[Callable[[], None]], None]:
    """Return what takes a function to call when the client of a request leaves."""
    exchange: Any = request.scope.get("exchange")

    def watch(gone: Callable[[], None]) -> None:
        if exchange is not None:
            exchange.when_gone = gone

    return watch
