"""Bodies: what was sent, read in the one way that leaves no doubt, or refused with its place."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Request

from mcp_junction.api.errors import invalid, wrong
from mcp_junction.config.registration import parse_body
from mcp_junction.protocol import frames

T = TypeVar("T")
AnyRequest = Request[Any, Any, Any]


async def read_body(request: AnyRequest, *, optional: bool = False) -> tuple[bytes, Any]:
    """The body as it came, and as values. Without one, where it is optional, an empty object."""
    body = await request.body()
    if optional and not body:
        return b"{}", {}
    if frames.too_deep(body) or frames.has_long_number(body):
        raise wrong("$", "is nested too deeply, or has a number that is too long")
    value, problems = parse_body(body)
    if problems:
        raise invalid(problems)
    return body, value


def shaped(value: Any, kind: type[T]) -> T:
    """The value as ``kind``, which knows all the fields there may be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `")
        raise wrong(place.rstrip("`") or "$", f"is not right: {words}") from None
