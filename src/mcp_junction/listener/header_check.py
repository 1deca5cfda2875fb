"""Checks that the headers of a stateless request agree with its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import param_headers
from mcp_junction.protocol.param_headers import ParamHeader, decode_value
from mcp_junction.protocol.versions import HEADER_MISMATCH

Headers = Mapping[bytes, bytes]

_NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_TASKS: Final = "tasks/"
_ROUTING: Final = frozenset((b"mcp-protocol-version", b"mcp-method", b"mcp-name"))
_PARAM: Final = b"mcp-param-"


def repeated_header(given: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """Find a header that is repeated and must not be."""
    seen: set[bytes] = set()
    for name, _ in given:
        if name in _ROUTING or name.startswith(_PARAM):
            if name in seen:
                return name
            seen.add(name)
    return None


def is_plain(headers: Headers, version: bytes, method: bytes, name: bytes) -> bool:
    """Whether headers say these, written as nearly all write them."""
    get = headers.get
    return (
        get(b"mcp-name") == name
        and get(b"mcp-method") == method
        and get(b"mcp-protocol-version") == version
    )


def check(headers: Headers, version: bytes, method: str) -> None:
    """Compare the headers that every request has with its body. Raises FrameError."""
    if headers.get(b"mcp-protocol-version") != version:
        raise _mismatch("the MCP-Protocol-Version header is not the version in params._meta")
    if headers.get(b"mcp-method") != method.encode():
        raise _mismatch("the Mcp-Method header is not the method of the body")


def check_name(headers: Headers, method: str, name: str) -> None:
    """Compare the header that repeats the target. Raises FrameError."""
    value = headers.get(b"mcp-name")
    key = _NAMED.get(method)
    if key is None and value is not None and method.startswith(_TASKS):
        key = "taskId"  # an extension's: the header must be right, but need not be there
    if key is not None and (value is None or decode_value(value) != name):
        raise _mismatch(f"the Mcp-Name header is not params.{key}")


def check_arguments(
    headers: Headers, marked: tuple[ParamHeader, ...], params: dict[str, Raw]
) -> None:
    """Compare the headers that repeat arguments of a tool. Raises FrameError."""
    wrong = param_headers.find_mismatch(marked, params.get("arguments") or b"{}", headers)
    if wrong is not None:
        raise _mismatch(wrong)


def _mismatch(words: str) -> FrameError:
    return FrameError(HEADER_MISMATCH, words)
