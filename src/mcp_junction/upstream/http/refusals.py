"""Responses of HTTP servers that are no answers: refusals, what their status says, and web pages.

A call is repeated, or reported as not run, only after one of these: an error text that merely
mentions sessions may belong to a call that has run. What follows from a response is decided in
``exchanges.py``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcp_junction.protocol.versions import UNSUPPORTED_VERSION
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.upstream.link import shorten

_LONGEST: Final = 4096
_LONGEST_WAIT: Final = 1e9
"""Seconds, some thirty years: nobody waits longer, however long a server asks for."""
_MOST_DIGITS: Final = 20

UNAUTHENTICATED: Final = (401, 403)
"""The statuses of a server that refuses our credentials."""

UNKNOWN_SESSION: Final = frozenset(
    {
        # The TypeScript SDK's examples, and servers made after them; the Python SDK until 1.26.
        "bad request: no valid session id provided",
        "bad request: no valid session id provided for non-initialize request",
        "bad request: no valid session id or not an initialize request",
        "invalid or missing session id",
        # The transport of the TypeScript SDK, and of those ported from it, after a restart.
        "bad request: server not initialized",
        # mcp-go, and servers that say in a 400 what belongs in a 404.
        "invalid session id",
        "session not found",
        "bad request: session not found",
        "bad request: unknown mcp-session-id header",
    }
)
"""Messages of servers, with HTTP 400, about a session that they do not know."""

_SESSION_MISSING: Final = frozenset(
    {"bad request: mcp-session-id header is required", "bad request: missing session id"}
)
_OTHER_VERSION: Final = "bad request: unsupported protocol version"
_TITLE: Final = re.compile(r"<title[^>]*>\s*(.*?)\s*</title>", re.IGNORECASE | re.DOTALL)
_HTML: Final = re.compile(
    r"\s*(?:<!--.*?-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE
)


class _RefusalBody(msgspec.Struct, frozen=True):
    """The parts of a response that show why it refuses."""

    id: Any = None
    error: Any = None
    message: Any = None


def read_failure(status: int, headers: Mapping[bytes, bytes], *, is_session_lost: bool) -> Failure:
    """Say which failure an HTTP status of 400 or more is."""
    if is_session_lost:
        return Failure(FailureKind.SESSION_LOST)
    wait = read_retry_after(headers)
    if status == 429:
        return Failure(FailureKind.RATE_LIMITED, retry_after=wait)
    if status >= 500:
        is_busy = status == 503 and wait is not None
        kind = FailureKind.BUSY if is_busy else FailureKind.SERVER_FAULT
        return Failure(kind, retry_after=wait)
    if status in UNAUTHENTICATED:
        return Failure(FailureKind.CREDENTIAL)
    return Failure(FailureKind.REFUSED)


def read_retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Read the seconds that a server asks us to wait; None when it asks nothing we can read."""
    text = headers.get(b"retry-after", b"").strip()
    if text.isdigit():
        return min(float(text[:_MOST_DIGITS]), _LONGEST_WAIT)
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # few servers send a date

    try:
        moment = parsedate_to_datetime(text.decode("ascii", "replace"))
        return min(max(0.0, moment.timestamp() - time.time()), _LONGEST_WAIT)
    except (ValueError, OverflowError):
        return None


def is_unknown_session(body: bytes, wire_id: bytes) -> bool:
    """Whether a 400 says that the server does not know the session of a request."""
    refusal = _read(body)
    return not _is_answer(refusal, wire_id) and _words(refusal, body) in UNKNOWN_SESSION


def is_other_era(body: bytes, wire_id: bytes, *, has_sessions: bool) -> bool:
    """Whether a refusal shows a server of the other era than the one we talk to it in.

    An unsupported version is such a refusal also in the answer to the request itself.
    ``has_sessions``: whether the other era is the handshake era.
    """
    refusal = _read(body)
    error = refusal.error if refusal is not None else None
    if isinstance(error, dict) and error.get("code") == UNSUPPORTED_VERSION:
        return True
    if not has_sessions or _is_answer(refusal, wire_id):
        return False
    words = _words(refusal, body)
    is_session = words in UNKNOWN_SESSION or words in _SESSION_MISSING
    return is_session or words.startswith(_OTHER_VERSION)


def _read(body: bytes) -> _RefusalBody | None:
    if len(body) > _LONGEST or body.lstrip()[:1] != b"{":
        return None
    try:
        return msgspec.json.decode(body, type=_RefusalBody)
    except msgspec.MsgspecError:
        return None


def _is_answer(refusal: _RefusalBody | None, wire_id: bytes) -> bool:
    """Whether it answers the request itself, which then was read and may have run.

    Some servers write the id as a string.
    """
    return refusal is not None and str(refusal.id) == wire_id.decode()


def _words(refusal: _RefusalBody | None, body: bytes) -> str:
    """The message of a refusal, in whichever of the usual forms; empty when there is none."""
    if refusal is None:
        text: Any = body.decode("utf-8", "replace") if len(body) <= _LONGEST else ""
    elif isinstance(refusal.error, dict):
        text = refusal.error.get("message")
    else:
        text = refusal.error or refusal.message
    return " ".join(text.lower().split()).rstrip(".!") if isinstance(text, str) else ""


def describe_body(text: str) -> str:
    """Describe a body that is not an MCP answer, as the end of a sentence."""
    if not text.strip():
        return " with nothing in it"
    if _HTML.match(text):
        title = _TITLE.search(text)
        named = f" ({shorten(title[1])!r})" if title and title[1] else ""
        return f" with a web page{named} where MCP should be; check the path of its url"
    return f": {shorten(' '.join(text.split()))}"
