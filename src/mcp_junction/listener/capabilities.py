"""What clients are told that Junction can do. What nobody behind it has is just empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from mcp_junction.upstream.hello import Greeting
from mcp_junction.upstream.server import Upstream

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


def instructions_of(servers: Sequence[tuple[str, Upstream]], tokens: int) -> str:
    """What these servers tell clients: of one as it is, of several under their names."""
    said = [(key, said_by(server)) for key, server in servers]
    if len(said) == 1:
        return said[0][1]
    found = tuple((key, text) for key, text in said if text)
    if not found:
        return ""
    from mcp_junction.catalog.instructions import join

    return join(found, tokens)


def said_by(server: Upstream) -> str:
    """What one server tells clients, without what must not be passed on; empty while it is down."""
    greeting = server.greeting
    if server.link is None or greeting is None or not greeting.instructions:
        return ""
    # Imported where it is used: most servers say nothing, and its patterns take milliseconds.
    from mcp_junction.catalog.instructions import clean

    return clean(greeting.instructions)
