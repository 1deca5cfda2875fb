"""Discretion: what is said of a failed server, fit to be logged, stored and shown to anybody.

The words may be the server's own. It may repeat the credentials it was sent, go on for a megabyte,
or hold what steers a terminal and what a database does not take. What a call is answered with is
not touched here: that is between the server and its caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import ServerError
from mcp_junction.upstream.confidences import secrets_of

LONGEST: Final = 2_000
_HIDDEN: Final = "***"


def discreet(error: ServerError, definition: ServerDefinition) -> ServerError:
    """The same error, without what is nobody's business."""
    secrets = secrets_of(definition)
    tail = _without(error.stderr_tail, secrets)  # before it is lines: a secret may be several
    return error.retold(
        plain(_without(error.message, secrets)), "\n".join(map(plain, tail.splitlines()))
    )


def tail_of(written: bytes, size: int, definition: ServerDefinition) -> str:
    """The end of what a server wrote, about so many bytes of it.

    What is left of a secret that was cut would not be known again: the tail begins behind it.
    """
    start = len(written) - size
    if start > 0:
        secrets = [text.encode("utf-8", "surrogateescape") for text in secrets_of(definition)]
        while (behind := _behind(written, start, secrets)) > start:
            start = behind
    return written[max(start, 0) :].decode("utf-8", "replace")


def plain(text: str) -> str:
    """One line of bounded length that only says something."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def _without(text: str, secrets: list[str]) -> str:
    parts: list[str] = []
    shown = 0
    for start, end in sorted(span for secret in secrets for span in _spans(text, secret)):
        if start > shown or not parts:
            parts += [text[shown:start], _HIDDEN]
        shown = max(shown, end)  # of two that overlap nothing is left
    return "".join([*parts, text[shown:]])


def _spans(text: str, secret: str) -> Iterator[tuple[int, int]]:
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _behind(written: bytes, start: int, secrets: list[bytes]) -> int:
    """The end of a secret that begins before a place and goes beyond it, or that place."""
    for secret in secrets:
        reach = len(secret) - 1
        found = written.rfind(secret, max(start - reach, 0), start + reach)
        if found >= 0:
            return found + len(secret)
    return start
