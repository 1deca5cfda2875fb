"""Masking: a connection as responses show it, and taking a shown one back.

Every value of ``env`` and ``headers`` is masked, so is what ``auth`` or any other object holds
under a secret's name, and passwords and secret parameters in URLs. Who sends a masked
value back where it was shown means "as before".
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from mcp_junction.errors import VaultError
from mcp_junction.policy.secrecy import is_secret

MASK: Final = "***"
_WHOLE: Final = ("env", "headers")


def masked(config: dict[str, Any]) -> dict[str, Any]:
    """A connection with its secrets masked."""
    return {
        name: _hidden(value) if name in _WHOLE or is_secret(name) else _shown(value)
        for name, value in config.items()
    }


def unmasked(sent: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """A connection that was sent, with what is masked in it taken from the one that is kept.

    Raises VaultError for a mask where nothing was kept.
    """
    restored = _restored(sent, masked(kept), kept)
    if _holds_mask(restored, kept):
        raise VaultError(f"{MASK!r} stands for a value that is kept, and there is none")
    return restored  # type: ignore[no-any-return]


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    return MASK if value is not None else None


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return masked(value)
    if isinstance(value, list):
        return [_shown(inner) for inner in value]
    return _shown_text(value) if isinstance(value, str) else value


def _shown_text(text: str) -> str:
    """An argument or a URL: ``--api-key=…`` and ``user:password@`` are not shown."""
    if text.startswith("-"):
        flag, equals, _ = text.partition("=")
        return f"{flag}={MASK}" if equals and is_secret(flag) else text
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return text
    netloc, query = parts.netloc, parts.query
    if "@" in netloc:
        netloc = f"{MASK}@{netloc.rpartition('@')[2]}"
    if any(is_secret(name) for name, _ in given):
        shown = [(name, MASK if is_secret(name) else value) for name, value in given]
        query = urlencode(shown, safe="*")
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def _restored(sent: Any, shown: Any, kept: Any) -> Any:
    """What equals the shown form at its place is what was kept there."""
    if isinstance(sent, dict) and isinstance(kept, dict) and isinstance(shown, dict):
        return {
            name: _restored(value, shown[name], kept[name]) if name in kept else value
            for name, value in sent.items()
        }
    if sent == shown:
        return kept
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        return [_restored(*three) for three in zip(sent, shown, kept, strict=True)]
    return sent


def _holds_mask(value: Any, kept: Any) -> bool:
    if isinstance(value, dict):
        inner = kept if isinstance(kept, dict) else {}
        return any(_holds_mask(one, inner.get(name)) for name, one in value.items())
    if isinstance(value, list):
        return any(_holds_mask(one, None) for one in value)
    return bool(value == MASK and kept != MASK)
