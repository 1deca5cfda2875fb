"""What clients are told that Junction can do. What nobody behind it has is just empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mcp_junction.upstream.hello import Greeting

CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}


def stateless_capabilities(greetings: Iterable[Greeting]) -> dict[str, Any]:
    """For stateless clients also the extensions of stateless servers, which pass unread."""
    extensions: dict[str, Any] = {}
    for greeting in greetings:
        extensions |= greeting.extensions
    return {**CAPABILITIES, "extensions": extensions} if extensions else CAPABILITIES
