"""Parts that all REST routes share: options, error responses, request bodies, ETags and paging."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from mcp_junction.api.context import ApiContext
from mcp_junction.api.errors import (
    MCP_STATUS,
    MCP_TYPES,
    STATUS,
    ErrorBody,
    McpErrorBody,
    field_error,
    validation_error,
)
from mcp_junction.api.models import Server, Skill
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import BODY, PRINCIPAL
from mcp_junction.config.registration import parse_body
from mcp_junction.errors import CursorError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import frames
from mcp_junction.web.application import ReadBody
from mcp_junction.web.messages import Request, Response
from mcp_junction.web.routing import (
    HeaderParameter,
    Operation,
    PathParameter,
    QueryParameter,
    ResponseSpec,
)

T = TypeVar("T")
Shown = TypeVar("Shown")
Versioned = TypeVar("Versioned", Server, Skill)
AnyRequest = Request
Context = ApiContext
"""The types of a handler's parameters ``request`` and ``context``."""

# -- declaring a route

_ALWAYS: Final = ("UNAUTHENTICATED", "FORBIDDEN", "VALIDATION_ERROR", "STORE_UNAVAILABLE")
_WITH_BODY: Final = ("PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE")


def error_responses(*codes: str, has_body: bool = False) -> dict[int, ResponseSpec]:
    """Describe the error responses of a route, for its documentation."""
    return _describe_errors(codes, has_body, STATUS, {}, ErrorBody)


def mcp_error_responses(*codes: str, has_body: bool = False) -> dict[int, ResponseSpec]:
    """Describe the error responses of a route under ``/api/v1/mcp``."""
    return _describe_errors(codes, has_body, MCP_STATUS, MCP_TYPES, McpErrorBody)


def _describe_errors(
    codes: Sequence[str],
    has_body: bool,
    statuses: Mapping[str, int],
    names: Mapping[str, str],
    body: type[Any],
) -> dict[int, ResponseSpec]:
    by_status: dict[int, dict[str, None]] = {}  # of names, each once
    for code in (*_ALWAYS, *(_WITH_BODY if has_body else ()), *codes):
        by_status.setdefault(statuses[code], {})[names.get(code, code)] = None
    return {status: ResponseSpec(body, " or ".join(found)) for status, found in by_status.items()}


# -- reading a request


def caller(request: AnyRequest) -> Principal:
    """Return the principal of a request, which RestFront has authenticated."""
    principal: Principal = request.scope[PRINCIPAL]
    return principal


async def read_body(request: AnyRequest, *, optional: bool = False) -> tuple[bytes, Any]:
    """Read the body, as bytes and as a value; an ``optional`` one may be empty, which is ``{}``."""
    body = await request.body()
    if optional and not body:
        return b"{}", {}
    if frames.is_too_deep(body) or frames.has_long_number(body):
        raise field_error("$", "is nested too deeply, or has a number that is too long")
    value, problems = parse_body(body)
    if problems:
        raise validation_error(problems)
    return body, value


async def read_model(request: AnyRequest, model: type[T], *, optional: bool = False) -> T:
    """Read the body as a model."""
    return to_model((await read_body(request, optional=optional))[1], model)


def body_reader(operation: Operation) -> ReadBody | None:
    """Return what reads the body of a route as its model; None for one that does it itself.

    A route that needs nothing may have a body all the same: an empty object. Only of a change the
    body may not be left out where no field is required.
    """
    model = operation.opt.get(BODY)
    if model is None or not (model is Nothing or operation.takes_body):
        return None
    is_needed = any(field.required for field in msgspec.structs.fields(model))
    optional = operation.method != "PATCH" and not is_needed
    return lambda request: read_model(request, model, optional=optional)


def to_model(value: Any, model: type[T]) -> T:
    """Convert a decoded body to its model, or raise the error that names the wrong field."""
    try:
        return msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `")
        raise field_error(place.rstrip("`") or "$", f"is not right: {words}") from None


IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=100,
        description="The ETag that was read: the change is made only if it is still the one.",
    ),
]


def respond_with_etag(shown: Versioned, location: str | None = None) -> Response[Versioned]:
    """Answer with a server or a skill and its ETag; ``location`` is the address of a new one."""
    headers = {"etag": f'"{shown.version}"'}
    if location is None:
        return Response(shown, headers=headers)
    return Response(shown, status_code=201, headers={**headers, "location": location})


def parse_if_match(if_match: str | None) -> int | None:
    """Read the version from an If-Match header; None when any version is accepted."""
    if if_match is None or if_match.strip() == "*":
        return None
    bare = if_match.strip().removeprefix('"').removesuffix('"')
    if not (bare.isascii() and bare.isdecimal() and len(bare) < 18):
        raise field_error("If-Match", "must be one ETag of what is to be changed, or *")
    return int(bare)


# -- what several resources name

ServerRef = Annotated[
    str, PathParameter(max_length=300, description="The server's id (a UUID) or its name.")
]
OfServer = Annotated[
    str | None, QueryParameter(max_length=300, description="Only this server's: its id or name.")
]


def parse_time(name: str, text: str | None) -> float | None:
    """Read a time of a query: RFC 3339, or seconds since 1970. Refuses one that has no date."""
    if text is None:
        return None
    try:
        if text.replace(".", "", 1).isdecimal() and text.isascii():
            seconds = float(text)
        else:
            at = datetime.fromisoformat(text)
            seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
        datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise field_error(name, "must be a time like 2027-01-31T12:00:00Z") from None
    return seconds


def find_server_id(ref: str | None, names: dict[str, str]) -> str | None:
    """Return the id of a server; what is neither id nor name may be the id of one that is gone."""
    if ref is None or ref in names:
        return ref
    return next((server for server, name in names.items() if name == ref), ref)


# -- paging: a cursor names the last item of its page, so it survives changes of the list

MAX_LIMIT: Final = 1_000
DEFAULT_LIMIT: Final = 100

Limit = Annotated[
    int,
    QueryParameter(
        ge=1, le=MAX_LIMIT, description=f"At most so many items (default {DEFAULT_LIMIT})."
    ),
]
Cursor = Annotated[
    str | None,
    QueryParameter(max_length=2_000, description="The `next_cursor` of the page before, as it is."),
]
Key = tuple[Any, ...]
K = TypeVar("K", bound=Key)


class Page(NamedTuple, Generic[T]):
    """Part of a list, the length of the whole, and the cursor of the next part."""

    items: Sequence[T]
    total: int
    next_cursor: str | None


def page(items: Sequence[T], key: Callable[[T], Key], limit: int, cursor: str | None) -> Page[T]:
    """Cut the page after ``cursor`` out of ``items``, which are sorted by ``key``."""
    begin = 0
    if cursor:
        after = read_cursor(cursor, tuple[str | int | float, ...])
        try:
            begin = bisect_right(items, after, key=key)
        except TypeError:
            raise CursorError("is not a cursor of this list") from None
    chosen = items[begin : begin + limit]
    more = begin + len(chosen) < len(items)
    return Page(chosen, len(items), write_cursor(key(chosen[-1])) if more and chosen else None)


def respond_with_page(
    request: AnyRequest,
    items: Sequence[T],
    key: Callable[[T], Key],
    limit: int,
    cursor: str | None,
    show: Callable[[T], Shown],
) -> Response[list[Shown]]:
    """Answer with a page of a list under ``/api/v1/mcp``, and the header that leads on."""
    found = page(items, key, limit, cursor)
    return Response(list(map(show, found.items)), headers=link_next(request, found.next_cursor))


def link_next(request: AnyRequest, next_cursor: str | None) -> dict[str, str]:
    """Make the header that leads to the next page of a plain array; none after the last."""
    if next_cursor is None:
        return {}
    asked = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = [(name, value) for name, value in asked if name != "cursor"]
    path = quote(request.scope["path"])
    return {"link": f'<{path}?{urlencode([*query, ("cursor", next_cursor)])}>; rel="next"'}


def write_cursor(key: Key) -> str:
    """Encode an item's sort key as a cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_cursor(text: str, form: type[K]) -> K:
    """Decode the sort key in a cursor, which has this form. Raises CursorError."""
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
        return msgspec.json.decode(raw, type=form)
    except msgspec.ValidationError:
        raise CursorError("is not a cursor of this list") from None
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise CursorError("is not a cursor of ours") from None


def respond_by_time(
    request: AnyRequest,
    found: Sequence[T],
    limit: int,
    place: Callable[[T], tuple[float, str]],
    show: Callable[[T], Shown],
) -> Response[list[Shown]]:
    """Answer with a page of a list by time, of which one more than the limit was read.

    ``place`` is the time and the id of an item.
    """
    more = write_cursor(place(found[limit - 1])) if len(found) > limit else None
    return Response(list(map(show, found[:limit])), headers=link_next(request, more))


def read_time_cursor(cursor: str | None) -> tuple[float, str] | None:
    """Decode the place in a list by time; None is its beginning. Raises CursorError."""
    return None if cursor is None else read_cursor(cursor, tuple[float, str])
