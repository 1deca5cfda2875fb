"""Agreement: whether the headers that repeat a stateless request say the same as the request.

Intermediaries go by the headers and servers by the body; where they differ, nobody knows who meant
what. Only what the protocol has repeated is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from mcp_junction.protocol import frames, param_headers
from mcp_junction.protocol.envelope import Envelope
from mcp_junction.protocol.frames import Frame

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


def mismatch(headers: Headers, frame: Frame, params: dict[str, Raw], said: Envelope) -> str | None:
    """What of a request its headers say differently, in words."""
    version = headers.get(b"mcp-protocol-version")
    if version is None or bytes(said.version) != b'"%b"' % version:
        return "the MCP-Protocol-Version header is not the version in params._meta"
    if headers.get(b"mcp-method") != frame.method.encode("utf-8", "surrogatepass"):
        return "the Mcp-Method header is not the method of the body"
    key, value = _NAMED.get(frame.method), headers.get(b"mcp-name")
    if key is None and value is not None and frame.method.startswith(_TASKS):
        key = "taskId"  # an extension's: what is said must be right, but need not be said
    if key is None:
        return None
    name = frames.text(params.get(key))
    if name is not None and (value is None or param_headers.decode_value(value) != name):
        return f"the Mcp-Name header is not params.{key}"
    return None
