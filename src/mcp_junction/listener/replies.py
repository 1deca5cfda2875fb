"""Replies: answers to stateless clients, with the HTTP status that goes with each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Raw

from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.versions import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
)

HTTP_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}


class Reply(NamedTuple):
    """An answer, and the HTTP status that goes with it."""

    frame: bytes
    status: int = 200
    state: bytes = b""
    """What the client is to come back with, if it is asked something; as JSON."""


def refusal(
    frame_id: bytes, code: int, message: str, data: Mapping[str, Any] | None = None
) -> Reply:
    payload = encode.error_object(code, message, dict(data) if data is not None else None)
    return Reply(encode.error(frame_id, payload), HTTP_STATUS.get(code, 200))


def refuse_version(frame_id: bytes, meta: Raw) -> Reply:
    """Answer a request whose ``_meta`` names a protocol version we do not speak."""
    version = frames.text(envelope.read_envelope(meta).version)
    if version is None:
        return refusal(frame_id, INVALID_PARAMS, "the protocol version must be a string")
    return unsupported(frame_id, version)


def unsupported(frame_id: bytes, version: str) -> Reply:
    """The answer to a version we do not speak, with those we do."""
    data = {"supported": STATELESS_VERSIONS, "requested": version[:100]}
    return refusal(frame_id, UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def ending(frame_id: bytes) -> Reply:
    """The answer to a request that comes too late."""
    payload = encode.error_object(
        SERVER_UNAVAILABLE, "Junction is ending", {"delivery": "not_sent"}
    )
    return Reply(encode.error(frame_id, payload), 503)
