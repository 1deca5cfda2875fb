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


def join_instructions(servers: Sequence[tuple[str, Upstream]], tokens: int) -> str:
    """Join the instructions of servers: those of one as they are, of several under their names."""
    said = [(key, server_instructions(server)) for key, server in servers]
    if len(said) == 1:
        return said[0][1]
    found = tuple((key, text) for key, text in said if text)
    if not found:
        return ""
    from mcp_junction.catalog.instructions import join

    return join(found, tokens)


def server_instructions(server: Upstream) -> str:
    """Return one server's instructions, cleaned; empty while it is down."""
    greeting = server.greeting
    if server.link is None or greeting is None or not greeting.instructions:
        return ""
    # Imported where it is used: most servers say nothing, and its patterns take milliseconds.
    from mcp_junction.catalog.instructions import clean

    return clean(greeting.instructions)
