"""What every route says about itself: whom it is from, and what may come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from mcp_junction.api.context import ApiContext
from mcp_junction.api.errors import STATUS, ErrorBody
from mcp_junction.api.requests import AnyRequest
from mcp_junction.api.rights import PRINCIPAL
from mcp_junction.policy.principal import Principal

InRoom = NamedDependency[ApiContext]
"""How a handler asks for the room."""
BODY: Final = "body"
"""The option of a route that names the type of its body."""
_ALWAYS: Final = ("UNAUTHENTICATED", "FORBIDDEN", "VALIDATION_ERROR", "STORE_UNAVAILABLE")
_BODIED: Final = ("PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE")


def caller(request: AnyRequest) -> Principal:
    """Whom a request is from; the Front has found out."""
    principal: Principal = request.scope[PRINCIPAL]  # type: ignore[typeddict-item]
    return principal


def outcomes(*codes: str, bodied: bool = False) -> dict[int, ResponseSpec]:
    """The error answers of a route, for its documentation."""
    by_status: dict[int, list[str]] = {}
    for code in (*_ALWAYS, *(_BODIED if bodied else ()), *codes):
        by_status.setdefault(STATUS[code], []).append(code)
    return {status: _spec(found) for status, found in by_status.items()}


def _spec(codes: Sequence[str]) -> ResponseSpec:
    words = " or ".join(codes)
    return ResponseSpec(ErrorBody, generate_examples=False, description=words)


def options(right: dict[str, Any], body: type[Any] | None = None) -> dict[str, Any]:
    """What a route says about itself: the right it needs, and the type of its body."""
    return right if body is None else {**right, BODY: body}
