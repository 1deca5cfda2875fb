"""Finds the one line of a server's output that says best why it failed."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 300
_LOOKED_AT: Final = 40
_ERROR: Final = re.compile(
    r"error|exception|fail|fatal|panic|denied|refused|invalid|missing|unknown|required|expired"
    r"|certificate|cannot|could not|can't|unable|no such|not (?:found|set|a)\b|unauthori[sz]ed",
    re.IGNORECASE,
)
_NOISE: Final = re.compile(
    r"\s+at |\s*File \"|Traceback|\s*[\^~]+\s*$|Node\.js v|npm (?:notice|warn)|usage:|\s*try\b"
    r"|\s*[{}\[\]]",
    re.IGNORECASE,
)
_TITLE: Final = re.compile(r"<title[^>]*>\s*(.*?)\s*</title>", re.IGNORECASE | re.DOTALL)
_HTML: Final = re.compile(
    r"\s*(?:<!--.*?-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE
)


def find_cause(stderr: str) -> str:
    """Find the line of a server's stderr that says why it failed; empty when stderr is."""
    lines = [line for line in stderr.splitlines() if line.strip()][-_LOOKED_AT:]
    telling = [line for line in lines if not _NOISE.match(line)] or lines
    error = next((line for line in reversed(telling) if _ERROR.search(line)), "")
    return cut(error or (telling[-1] if telling else ""))


def add_cause(what: str, stderr: str) -> str:
    """Add the cause that stderr shows, if any, to a message about a failure."""
    cause = find_cause(stderr)
    return f"{what}; it said: {cause}" if cause else what


def describe_body(text: str) -> str:
    """Describe a body that is not an MCP answer, as the end of a sentence."""
    if not text.strip():
        return " with nothing in it"
    if _HTML.match(text):
        title = _TITLE.search(text)
        named = f" ({cut(title[1])!r})" if title and title[1] else ""
        return f" with a web page{named} where MCP should be; check the path of its url"
    return f": {cut(' '.join(text.split()))}"


def cut(text: str) -> str:
    """Shorten a text to a bounded length."""
    text = text.strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
