"""Discretion: what is said of a failed server, fit to be logged, stored and shown to anybody.

The words may be the server's own. It may repeat the credentials it was sent, go on for a megabyte,
or hold what steers a terminal and what a database does not take. What a call is answered with is
not touched here: that is between the server and its caller.
"""

from __future__ import annotations

from typing import Final

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import ServerError
from mcp_junction.policy.secrecy import is_secret

LONGEST: Final = 2_000
_HIDDEN: Final = "***"
_SCHEMES: Final = {"Basic", "basic", "Bearer", "bearer", "Digest", "digest"}
_LEAST: Final = 6
"""A shorter value is no secret, and would be found in every other word."""


def discreet(error: ServerError, definition: ServerDefinition) -> ServerError:
    """The same error, without what is nobody's business."""
    secrets = secrets_of(definition)
    return error.retold(
        plain(_without(error.message, secrets)),
        "\n".join(plain(_without(line, secrets)) for line in error.stderr_tail.splitlines()),
    )


def secrets_of(definition: ServerDefinition) -> list[str]:
    """What a server is given that it should not repeat; the longest first."""
    found = {word for value in definition.headers.values() for word in (value, *value.split())}
    found -= _SCHEMES
    found |= {
        value
        for name, value in definition.env.items()
        if is_secret(name) or not value.startswith("/")  # paths are what messages are about
    }
    for text in (definition.url.partition("?")[2].replace("&", " "), *definition.args):
        for word in text.split():
            name, equals, value = word.partition("=")
            if equals and is_secret(name):
                found.add(value)
    return sorted((value for value in found if len(value) >= _LEAST), key=len, reverse=True)


def plain(text: str) -> str:
    """One line of bounded length that only says something."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, _HIDDEN)
    return text
