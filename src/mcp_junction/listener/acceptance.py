"""Acceptance: takes out of a request what it carries for Junction itself, and checks it.

Members of ``_meta`` that begin with ``junction/`` and a few headers become a Carried, before
anything of the request is logged, hashed, cached or forwarded. Errors never repeat what was sent:
one of the members is a secret. Only the service does this. In stdio mode ``junction/`` members are
passed on, so that a Junction behind it can be the one they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Carried
from mcp_junction.errors import FrameError
from mcp_junction.listener.replies import Headers
from mcp_junction.policy.principal import MAX_AGENT_ID
from mcp_junction.policy.tokens import PresentedToken, read_token
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.cycles import ID_KEY
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.resilience.idempotency import check_key

MAX_CORRELATION_ID: Final = 128
MAX_LABEL: Final = 255
"""Characters of a ticket's or a task's id."""
MAX_TOKEN: Final = 512
MAX_TRACEPARENT: Final = 55
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000
_PREFIX: Final = "junction/"
_PREFIX_BYTES: Final = _PREFIX.encode()
_ESCAPE: Final = ord("\\")
_NULL: Final = b"null"
_DIGITS: Final = frozenset(b"0123456789")


def _check_agent_id(text: str) -> str:
    if not 1 <= len(text) <= MAX_AGENT_ID or not text.isprintable():
        raise ValueError(f"must be 1 to {MAX_AGENT_ID} printable characters")
    return text


def _check_correlation_id(text: str) -> str:
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if not 1 <= len(text) <= MAX_CORRELATION_ID or not is_plain:
        raise ValueError(
            f"must be 1 to {MAX_CORRELATION_ID} printable ASCII characters, without spaces"
        )
    return text


def _check_label(text: str) -> str:
    if not 1 <= len(text) <= MAX_LABEL or not text.isprintable():
        raise ValueError(f"must be 1 to {MAX_LABEL} printable characters")
    return text


def _check_idempotency_key(text: str) -> str:
    wrong = check_key(text)
    if wrong is not None:
        raise ValueError(f"is not valid: {wrong}")
    return text


def _read_timeout(text: str) -> float:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_TIMEOUT_MS))
    if not digits or not 1 <= int(text) <= MAX_TIMEOUT_MS:
        raise ValueError(f"must be a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}")
    return int(text) / 1000


def _read_token(text: str) -> PresentedToken:
    token = read_token(text) if len(text) <= MAX_TOKEN else None
    if token is None:
        raise ValueError("is not a token of Junction; send the text that was shown with the grant")
    return token


def _read_traceparent(text: str) -> str | None:
    """Return a trace context; one that is too long is ignored, as W3C wants it."""
    return text if len(text) <= MAX_TRACEPARENT else None


class _Key(NamedTuple):
    """One thing that a request can carry: its field, how to read it, and its header."""

    field: str
    read: Callable[[str], object]
    header: str = ""
    is_number: bool = False


_KEYS: Final = {
    "junction/agent-id": _Key("agent_id", _check_agent_id, "X-Agent-Id"),
    "junction/correlation-id": _Key("correlation_id", _check_correlation_id, "X-Correlation-Id"),
    "junction/ticket-id": _Key("ticket_id", _check_label),
    "junction/task-id": _Key("task_id", _check_label),
    "junction/idempotency-key": _Key("idempotency_key", _check_idempotency_key, "Idempotency-Key"),
    "junction/token": _Key("token", _read_token),
    "junction/traceparent": _Key("traceparent", _read_traceparent, "traceparent"),
    "junction/timeout-ms": _Key("timeout", _read_timeout, "X-Timeout-Ms", True),
}
HEADERS: Final = frozenset(key.header.lower().encode() for key in _KEYS.values() if key.header)
"""The names of the headers that carry something."""


def find_carrying(given: Sequence[tuple[bytes, bytes]], headers: Headers) -> Headers | None:
    """Return ``headers`` if one of them carries something. Raises FrameError for a repeated one."""
    if HEADERS.isdisjoint(headers):
        return None
    twice = find_repeated(given, HEADERS) if len(given) != len(headers) else None
    if twice is not None:
        raise FrameError(INVALID_PARAMS, f"the {twice.decode()} header appears more than once")
    return headers


def find_repeated(
    given: Sequence[tuple[bytes, bytes]], names: Collection[bytes], prefix: bytes | None = None
) -> bytes | None:
    """Find a header that appears twice: one of ``names``, or one that begins with ``prefix``."""
    seen: set[bytes] = set()
    for name, _ in given:
        if name in names or (prefix is not None and name.startswith(prefix)):
            if name in seen:
                return name
            seen.add(name)
    return None


def accept(params: dict[str, Raw], headers: Headers | None) -> Carried:
    """Take out of a request's params what it carries, and read it with the headers.

    ``headers`` is None where none of them carries anything. Raises FrameError.
    """
    taken = _take_members(params)
    if not taken and headers is None:
        return NOTHING_CARRIED
    found: dict[str, Any] = {}
    for member, key in _KEYS.items():
        value = _read_member(member, key, taken.get(member))
        value = _with_header(key, value, headers, f"params._meta has as {member}")
        if value is not None:
            found[key.field] = value
    return Carried(**found) if found else NOTHING_CARRIED


def accept_fields(fields: Mapping[str, str | int | None], headers: Headers | None) -> Carried:
    """Read what a REST body carries in these fields, with the headers. Raises FrameError."""
    found: dict[str, Any] = {}
    for key in _KEYS.values():
        name = "timeout_ms" if key.is_number else key.field
        given = fields.get(name)
        value = None if given is None else _read(name, key, str(given))
        value = _with_header(key, value, headers, f"the body has as {name}")
        if value is not None:
            found[key.field] = value
    return Carried(**found) if found else NOTHING_CARRIED


def _take_members(params: dict[str, Raw]) -> dict[str, Raw]:
    """Remove our members from ``_meta``; the others keep their order and values."""
    meta = params.get("_meta")
    if meta is None:
        return {}
    text = frames.octets(meta)
    # A name may be written with escapes. To replace is the fastest way to see what is absent.
    if _ESCAPE not in text and len(text.replace(_PREFIX_BYTES, b"")) == len(text):
        return {}
    members = frames.object_members(text)
    taken = {
        name: members.pop(name)
        for name in list(members)
        if name.startswith(_PREFIX) and name != ID_KEY
    }
    if not taken:
        return {}
    if members:
        params["_meta"] = Raw(encode.dumps(members))
    else:
        del params["_meta"]
    if frames.has_repeated_name(text):
        raise FrameError(INVALID_PARAMS, "params._meta has a member twice; send each once")
    if not taken.keys() <= _KEYS.keys():
        words = f"params._meta has an unknown member of Junction's; it takes {', '.join(_KEYS)}"
        raise FrameError(INVALID_PARAMS, words)
    return taken


def _read_member(member: str, key: _Key, raw: Raw | None) -> object:
    octets = b"" if raw is None else frames.octets(raw)
    if octets in (b"", _NULL):
        return None
    if not key.is_number:
        text = frames.text(octets)
        if text is None:
            raise FrameError(INVALID_PARAMS, f"params._meta: {member} must be a string")
    else:
        text = octets.decode() if _DIGITS.issuperset(octets) else ""
    return _read(f"params._meta: {member}", key, text)


def _with_header(key: _Key, value: object, headers: Headers | None, place: str) -> object:
    """Return a value, or what its header has; both must say the same."""
    header = headers.get(key.header.lower().encode()) if headers is not None else None
    if header is None or not key.header:
        return value
    same = _read_header(key, header)
    if value is not None and same != value:
        raise FrameError(INVALID_PARAMS, f"the {key.header} header is not what {place}")
    return same


def _read_header(key: _Key, value: bytes) -> object:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise FrameError(INVALID_PARAMS, f"the {key.header} header is not UTF-8") from None
    return _read(f"the {key.header} header", key, text)


def _read(where: str, key: _Key, text: str) -> object:
    try:
        return key.read(text)
    except ValueError as error:
        raise FrameError(INVALID_PARAMS, f"{where} {error}") from None
