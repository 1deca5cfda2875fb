"""Agreement: whether the headers that repeat a stateless request say the same as the request.

Intermediaries go by the headers and servers by the body; where they differ, nobody knows who meant
what. Only what the protocol has repeated is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcp_junction.protocol.param_headers import decode_value

Headers = dict[bytes, bytes]

_NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_TASKS: Final = "tasks/"
_ROUTING: Final = frozenset((b"mcp-protocol-version", b"mcp-method", b"mcp-name"))
_PARAM: Final = b"mcp-param-"


def said_twice(given: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """A header that must be there once and is there more often."""
    seen: set[bytes] = set()
    for name, _ in given:
        if name in _ROUTING or name.startswith(_PARAM):
            if name in seen:
                return name
            seen.add(name)
    return None


def mismatch(headers: Headers, method: str, version: bytes) -> str | None:
    """What of any request its headers say differently, in words."""
    if headers.get(b"mcp-protocol-version") != version:
        return "the MCP-Protocol-Version header is not the version in params._meta"
    if headers.get(b"mcp-method") != method.encode():
        return "the Mcp-Method header is not the method of the body"
    return None


def is_plainly_named(headers: Headers, name: str) -> bool:
    """Whether headers name the same as the request, written as nearly all write it."""
    value = headers.get(b"mcp-name")
    return value == name.encode() and value[:2] != b"=?"


def misnamed(headers: Headers, method: str, name: str) -> str | None:
    """How headers name something else than a request that is for ``name``, in words."""
    value = headers.get(b"mcp-name")
    key = _NAMED.get(method)
    if key is None and value is not None and method.startswith(_TASKS):
        key = "taskId"  # an extension's: what is said must be right, but need not be said
    if key is None or (value is not None and decode_value(value) == name):
        return None
    return f"the Mcp-Name header is not params.{key}"
