"""Error responses of the REST API: the table of codes, and the code for each exception.

A body is ``{"detail", "error_code", "context"}``; under ``/api/v1/mcp`` it is ``{"error": {"type",
"message"}}`` with the members of the context beside ``error``. It never quotes a value of the
request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mcp_junction import errors
from mcp_junction.errors import Problem, RequestError

log = logging.getLogger("mcp_junction.api")

STATUS: Final = {
    "INVALID_ARGUMENTS": 400,
    "TOOL_AMBIGUOUS": 400,
    "SIGN_IN_NEEDED": 401,
    "UNAUTHENTICATED": 401,
    "APPROVAL_REQUIRED": 403,
    "DENIED": 403,
    "FORBIDDEN": 403,
    "AGENT_NOT_FOUND": 404,
    "APPROVAL_NOT_FOUND": 404,
    "ESCALATION_NOT_FOUND": 404,
    "GRANT_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "SERVER_NOT_FOUND": 404,
    "SKILL_NOT_FOUND": 404,
    "TOOL_NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "APPROVAL_DECIDED": 409,
    "IDEMPOTENCY_CONFLICT": 409,
    "NOT_INTERACTIVE": 409,
    "SERVER_ALREADY_EXISTS": 409,
    "SERVER_OWNED_BY_FILE": 409,
    "SKILL_ALREADY_EXISTS": 409,
    "TOOL_CHANGED": 409,
    "TOOL_DISABLED": 409,
    "VERSION_CONFLICT": 412,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "VALIDATION_ERROR": 422,
    "RATE_LIMITED": 429,
    "INTERNAL_ERROR": 500,
    "EXECUTION_FAILED": 502,
    "SIGN_IN_FAILED": 502,
    "CIRCUIT_OPEN": 503,
    "SERVER_UNAVAILABLE": 503,
    "SERVER_CONNECTION_FAILED": 503,
    "SESSION_NOT_FOUND": 503,
    "STORE_UNAVAILABLE": 503,
    "TIMEOUT": 504,
}
"""Every code there is, and its HTTP status."""

MCP_PREFIX: Final = "/api/v1/mcp"
"""Where errors have a type rather than a code."""
MCP_STATUS: Final = STATUS | {
    "APPROVAL_REQUIRED": 401,
    "DENIED": 401,
    "VALIDATION_ERROR": 400,
    "EXECUTION_FAILED": 500,
}
"""The HTTP status of each code under ``/api/v1/mcp``."""
MCP_TYPES: Final = {
    "INVALID_ARGUMENTS": "BadRequestError",
    "TOOL_AMBIGUOUS": "BadRequestError",
    "VALIDATION_ERROR": "BadRequestError",
    "SIGN_IN_NEEDED": "SignInRequiredError",
    "UNAUTHENTICATED": "AuthorizationError",
    "DENIED": "AuthorizationError",
    "FORBIDDEN": "ForbiddenError",
    "APPROVAL_REQUIRED": "ApprovalRequired",
    "APPROVAL_DECIDED": "ApprovalDecidedError",
    "AGENT_NOT_FOUND": "AgentNotFoundError",
    "APPROVAL_NOT_FOUND": "ApprovalNotFoundError",
    "ESCALATION_NOT_FOUND": "EscalationNotFoundError",
    "GRANT_NOT_FOUND": "GrantNotFoundError",
    "NOT_FOUND": "NotFoundError",
    "SERVER_NOT_FOUND": "ServerNotFoundError",
    "SKILL_NOT_FOUND": "SkillNotFoundError",
    "TOOL_NOT_FOUND": "ToolNotFoundError",
    "METHOD_NOT_ALLOWED": "MethodNotAllowedError",
    "IDEMPOTENCY_CONFLICT": "IdempotencyConflictError",
    "NOT_INTERACTIVE": "NotInteractiveError",
    "SERVER_ALREADY_EXISTS": "ServerExistsError",
    "SERVER_OWNED_BY_FILE": "ServerOwnedByFileError",
    "SKILL_ALREADY_EXISTS": "SkillExistsError",
    "TOOL_CHANGED": "ToolChangedError",
    "TOOL_DISABLED": "ToolDisabledError",
    "VERSION_CONFLICT": "VersionConflictError",
    "PAYLOAD_TOO_LARGE": "PayloadTooLargeError",
    "UNSUPPORTED_MEDIA_TYPE": "UnsupportedMediaTypeError",
    "RATE_LIMITED": "RateLimitError",
    "INTERNAL_ERROR": "InternalError",
    "EXECUTION_FAILED": "ToolInvocationError",
    "SIGN_IN_FAILED": "SignInFailedError",
    "CIRCUIT_OPEN": "CircuitOpenError",
    "SERVER_UNAVAILABLE": "ServerUnavailableError",
    "SERVER_CONNECTION_FAILED": "ServerUnavailableError",
    "SESSION_NOT_FOUND": "ServerUnavailableError",
    "STORE_UNAVAILABLE": "StoreUnavailableError",
    "TIMEOUT": "TimeoutError",
}
"""The type of each code under ``/api/v1/mcp``."""

_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.NotFound, "SERVER_NOT_FOUND"),
    (errors.AlreadyExists, "SERVER_ALREADY_EXISTS"),
    (errors.FileOwned, "SERVER_OWNED_BY_FILE"),
    (errors.NotPermitted, "FORBIDDEN"),
    (errors.AlreadyDecided, "APPROVAL_DECIDED"),
    (errors.DefinitionChanged, "TOOL_CHANGED"),
    (errors.VersionConflict, "VERSION_CONFLICT"),
    (errors.StoreUnavailable, "STORE_UNAVAILABLE"),
    (errors.CursorError, "VALIDATION_ERROR"),
    (errors.AddressRefused, "VALIDATION_ERROR"),
    (errors.VaultError, "VALIDATION_ERROR"),
    (errors.OAuthError, "SIGN_IN_FAILED"),
    (errors.ServerError, "SERVER_CONNECTION_FAILED"),
)
"""The code for each exception, most specific first; any other is an internal error."""
_OF_RESOURCES: Final = (errors.NotFound, errors.AlreadyExists)
"""Those that are about another resource where a route names one."""


class ErrorBody(msgspec.Struct):
    """Why a request failed."""

    detail: str
    error_code: str
    context: dict[str, Any] = {}


class McpError(msgspec.Struct):
    """What went wrong, in a word and in a sentence."""

    type: str
    message: str


class McpErrorBody(msgspec.Struct):
    """Why a request under ``/api/v1/mcp`` failed; further members depend on the route."""

    error: McpError


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error, ready to be sent."""

    status: int
    body: bytes
    headers: dict[str, str]


def to_answer(error: Exception, path: str = "", of: str | None = None) -> ErrorAnswer:
    """Make the response for an exception of a request to a path; ``of`` is its resource."""
    found = _describe(error, of)
    sent = {name.lower(): value for name, value in found.headers.items()}
    if found.code == "UNAUTHENTICATED":
        sent.setdefault("www-authenticate", 'Bearer realm="mcp-junction"')
    elif found.code in ("RATE_LIMITED", "STORE_UNAVAILABLE"):
        sent.setdefault("retry-after", "1")
    if is_mcp_path(path):
        kind = MCP_TYPES[found.code]
        shown = {"error": McpError(kind, found.detail), **found.context}
        return ErrorAnswer(MCP_STATUS[found.code], msgspec.json.encode(shown), sent)
    body = ErrorBody(found.detail, found.code, found.context)
    return ErrorAnswer(STATUS[found.code], msgspec.json.encode(body), sent)


def is_mcp_path(path: str) -> bool:
    """Whether errors at a path have a type rather than a code."""
    return path.startswith(MCP_PREFIX) and path[len(MCP_PREFIX) : len(MCP_PREFIX) + 1] in ("", "/")


def _describe(error: Exception, of: str | None = None) -> RequestError:
    """Find the code, the words, the context and the headers for an exception."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, errors.InvalidChange):
        return validation_error(error.problems)
    for kind, code in _CODES:
        if isinstance(error, kind):
            own = code.replace("SERVER", of) if of and kind in _OF_RESOURCES else code
            return RequestError(own if own in STATUS else code, str(error), _context(error))
    log.error("a request failed inside Junction", exc_info=error)
    return RequestError("INTERNAL_ERROR", "an internal error of Junction; its log says more")


def validation_error(problems: Sequence[Problem]) -> RequestError:
    """Make the error for a request that is wrong in these places."""
    listed = [{"path": problem.path, "message": problem.message} for problem in problems]
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return RequestError(
        "VALIDATION_ERROR", f"{first.path} {first.message}{more}", {"problems": listed}
    )


def field_error(path: str, message: str) -> RequestError:
    """Make the error for one wrong field."""
    return validation_error([Problem(errors.ProblemCode.INVALID_SCHEMA, path, message)])


def _context(error: Exception) -> dict[str, Any]:
    if isinstance(error, errors.DefinitionChanged):
        return {"current_hash": error.current}
    if isinstance(error, errors.VersionConflict):
        return {"current_version": error.found}
    if isinstance(error, errors.AddressRefused | errors.VaultError):
        return {"problems": [{"path": "$.connection_config", "message": str(error)}]}
    if isinstance(error, errors.OAuthError):
        named = {"step": error.step, "host": error.host, "reason": error.reason}
        return {**named, "oauth_error": error.code} if error.code else {**named}
    if isinstance(error, errors.CursorError):
        return {"problems": [{"path": "cursor", "message": str(error)}]}
    return {}
