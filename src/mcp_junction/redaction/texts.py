"""Redacts a server's own words, such as errors and stderr, so that anybody may read them.

They may repeat the credentials that the server was given, be a megabyte long, or contain control
characters. Results of calls are not redacted: they are between the server and its caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import ServerError

MASK: Final = "***"
"""Replaces a secret."""
LONGEST: Final = 2_000
SHORTEST: Final = 4
"""A shorter value does not count as a secret."""
_MANY: Final = 50
_START: Final = 16


def redact_error(error: ServerError, definition: ServerDefinition) -> ServerError:
    """Redact an error of a server."""
    message = redact_line(error.message, definition)
    return error.with_message(message, redact_lines(error.stderr_tail, definition))


def redact_line(text: str, definition: ServerDefinition) -> str:
    """Redact a text of a server, and make it one line."""
    return to_plain_line(redact(text, _secrets_of(definition)))


def redact_lines(text: str, definition: ServerDefinition) -> str:
    """Redact a text of a server, and make its lines printable."""
    text = redact(
        text, _secrets_of(definition)
    )  # before splitting: a secret may have several lines
    return "\n".join(map(to_plain_line, text.splitlines()))


def redact_text(text: str, definition: ServerDefinition) -> str:
    """Redact a text of a server, without any other change."""
    return redact(text, _secrets_of(definition))


def keep_tail(written: bytes, size: int, definition: ServerDefinition) -> str:
    """Return about the last ``size`` bytes of what a server wrote.

    The rest of a secret that is cut would not be recognised: the tail begins after it.
    """
    start = len(written) - size
    if start <= 0:
        return written.decode("utf-8", "replace")
    text = written.decode("utf-8", "surrogateescape")  # as secrets from the environment are
    start = len(written[:start].decode("utf-8", "surrogateescape"))
    secrets = _secrets_of(definition)
    first = max(start - max(map(len, secrets), default=0), 0)
    text, start = text[first:], start - first
    for begin, end in _find_spans(text, secrets):
        if begin < start < end:
            start = end
    return text[start:].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_plain_line(text: str) -> str:
    """Return a text as one line of bounded length, without control characters."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def redact(text: str, secrets: tuple[str, ...], *, is_cut: bool = False) -> str:
    """Replace each secret by a mask; ``is_cut``: one at the end may be cut short."""
    parts: list[str] = []
    shown = 0
    for start, end in _find_spans(text, secrets):
        if start > shown or not parts:
            parts += [text[shown:start], MASK]
        shown = end
    rest = text[shown:]
    return "".join([*parts, _mask_cut_secret(rest, secrets) if is_cut else rest])


def _mask_cut_secret(text: str, secrets: Iterable[str]) -> str:
    """Mask the beginning of a secret that is cut short at the end of a text."""
    for secret in secrets:
        at = text.find(secret[:_START]) if len(secret) > _START else -1
        if at >= 0 and secret.startswith(text[at:]):
            return f"{text[:at]}{MASK}"
    return text


def _secrets_of(definition: ServerDefinition) -> tuple[str, ...]:
    # Imported late: its patterns take milliseconds, and few servers fail.
    from mcp_junction.redaction.secrets import secrets_of

    return secrets_of(definition)


def _find_spans(text: str, secrets: tuple[str, ...]) -> list[tuple[int, int]]:
    """Find where secrets are in a text, in order; overlapping ones are merged."""
    covered: list[tuple[int, int]] = []
    for start, end in sorted(s for secret in _likely(text, secrets) for s in _spans(text, secret)):
        if covered and start < covered[-1][1]:
            start, before = covered.pop()
            end = max(end, before)
        covered.append((start, end))
    return covered


def _likely(text: str, secrets: tuple[str, ...]) -> Iterable[str]:
    """Select the secrets that may be in a text, quickly, where there are very many."""
    if len(secrets) <= _MANY:
        return secrets
    pieces = {text[at : at + SHORTEST] for at in range(len(text))}
    return [s for s in secrets if s[:SHORTEST] in pieces and s[-SHORTEST:] in pieces]


def _spans(text: str, secret: str) -> Iterator[tuple[int, int]]:
    """Find one secret in a text; occurrences that overlap are one span."""
    size = len(secret)
    start = text.find(secret)
    while start >= 0:
        end = start + size
        while (later := text.rfind(secret, end - size + 1, end + size - 1)) >= 0:
            end = later + size
        yield start, end
        start = text.find(secret, end)
