"""Masks the secrets of a server's connection in responses, and restores them in requests.

Every value of ``env`` and ``headers`` is masked; so is every value under a secret's name elsewhere:
arguments, ``NAME=value``, headers in arguments, urls; and these values wherever else they occur. A
reference to a variable (``${VAR}``) is shown.

A mask that is sent back where it was shown means "unchanged". That holds only while the connection
has the same target: a stored secret is never sent to another origin or program. Arguments may name
the program or its target, too (``npx PACKAGE``, ``--host NAME``), so only flags may change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from mcp_junction.config.variables import without_references
from mcp_junction.errors import MaskError
from mcp_junction.redaction.detect import is_credential_name, is_secret_name, names_secret
from mcp_junction.redaction.secrets import SecretSources, find_secrets, with_spellings
from mcp_junction.redaction.texts import MASK, redact

_FULLY_MASKED: Final = ("env", "headers")
_REFERENCE: Final = re.compile(
    r"(?:(?i:bearer|basic|token)\s+)?\$(?:\{(?:env:)?[A-Za-z_]\w*\}|[A-Z_][A-Z0-9_]*)"
)
_PAIR: Final = re.compile(r"(-{0,2}[\w.-]+)=(.+)", re.DOTALL)
_HEADER: Final = re.compile(r"([\w-]+):(?!//)\s*(.+)", re.DOTALL)
_BARE_FLAG: Final = re.compile(r"-\w|--[\w-]+")
_ADVICE: Final = "send the value itself instead of the mask"


def mask_connection(config: dict[str, Any]) -> dict[str, Any]:
    """Mask the secrets of a connection."""
    return _mask_members(config, with_spellings(find_secrets(_sources(config))))


def mask_url(url: str) -> str:
    """Mask the secrets of a url."""
    return str(mask_connection({"url": url})["url"])


def restore_masked(sent: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Replace the masks in a connection that was sent by the stored (``kept``) values.

    Raises MaskError for a mask without a stored value, and when the connection's target changed.
    """
    restored: dict[str, Any] = _restore(sent, mask_connection(kept), kept)
    if restored != sent and (what := _changed_target(restored, kept)) is not None:
        raise MaskError(f"{MASK!r} stands for a kept value, and {what} has changed; {_ADVICE}")
    check_unmasked(restored, kept)
    return restored


def restore_url(sent: str, kept: str | None) -> str:
    """Return the stored url if the one that was sent is its masked form.

    Raises MaskError for a mask in another url.
    """
    if kept is not None and sent == mask_url(kept):
        return kept
    check_unmasked(sent, kept)
    return sent


def check_unmasked(sent: Any, kept: Any = None) -> None:
    """Raise MaskError where a mask would be stored as a value."""
    if isinstance(sent, dict):
        inner = kept if isinstance(kept, dict) else {}
        for name, value in sent.items():
            check_unmasked(value, inner.get(name))
    elif isinstance(sent, list | tuple):
        values = kept if isinstance(kept, list | tuple) else ()
        for value in sent:
            check_unmasked(value, value if value in values else None)
    elif isinstance(sent, str) and MASK in sent and sent != kept:
        raise MaskError(f"{MASK!r} stands for a value that is kept, and there is none; {_ADVICE}")


# -- masking


def _sources(config: dict[str, Any]) -> SecretSources:
    def pairs(name: str) -> tuple[tuple[str, str], ...]:
        found = config.get(name)
        values = found.items() if isinstance(found, dict) else ()
        return tuple((k, without_references(v)) for k, v in values if isinstance(v, str))

    args = config.get("args")
    words = [config.get("command"), *(args if isinstance(args, list | tuple) else ())]
    urls = [value for value in config.values() if isinstance(value, str) and "://" in value]
    return SecretSources(
        tuple(without_references(word) for word in words if isinstance(word, str)),
        tuple(map(without_references, urls)),
        pairs("env"),
        pairs("headers"),
    )


def _mask_members(config: dict[str, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: _mask_fully(value) if _is_fully_masked(name, value) else _mask_value(value, secrets)
        for name, value in config.items()
    }


def _is_fully_masked(name: str, value: Any) -> bool:
    """Whether all values of a member are masked; an object like ``auth`` is searched instead."""
    if name in _FULLY_MASKED or names_secret(name):
        return True
    return is_secret_name(name) and not isinstance(value, dict)


def _mask_fully(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mask_fully(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_fully(inner) for inner in value]
    if value is None or (isinstance(value, str) and _REFERENCE.fullmatch(value)):
        return value
    return MASK


def _mask_value(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return _mask_members(value, secrets)
    if isinstance(value, list | tuple):
        return _mask_words(value, secrets)
    return _mask_text(value, secrets) if isinstance(value, str) else value


def _mask_words(words: Sequence[Any], secrets: tuple[str, ...]) -> list[Any]:
    """Mask arguments: the word after a flag like ``--token`` is a secret, too."""
    masked = []
    before = ""
    for word in words:
        follows = isinstance(word, str) and _is_value_of_secret_flag(before, word)
        masked.append(_mask_fully(word) if follows else _mask_value(word, secrets))
        before = word if isinstance(word, str) else ""
    return masked


def _is_value_of_secret_flag(before: str, word: str) -> bool:
    """Whether a word is the value of the flag before it, and that flag names a secret."""
    is_value = before.startswith("-") and "=" not in before and not word.startswith("-")
    return is_value and is_credential_name(before)


def _mask_text(text: str, secrets: tuple[str, ...]) -> str:
    """Mask an argument or a url: values under a secret's name, and known secrets."""
    for pattern, joint in ((_PAIR, "="), (_HEADER, ": ")):
        found = pattern.fullmatch(text)
        if found and is_secret_name(found[1]) and "://" not in found[1]:
            return f"{found[1]}{joint}{_mask_fully(found[2])}"
    return redact(_mask_url_parts(text) if "://" in text else text, secrets)


def _mask_url_parts(text: str) -> str:
    try:
        parts = urlsplit(text)
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return text
    netloc, query = parts.netloc, parts.query
    if "@" in netloc:
        netloc = f"{MASK}@{netloc.rpartition('@')[2]}"
    if any(is_secret_name(name) for name, _ in given):
        shown = [
            (name, _mask_fully(value) if is_secret_name(name) else value) for name, value in given
        ]
        query = urlencode(shown, safe="*${}:")
    return urlunsplit(parts._replace(netloc=netloc, query=query))


# -- restoring


def _restore(sent: Any, shown: Any, kept: Any) -> Any:
    """Replace values that equal the masked form by the stored value at the same place."""
    if isinstance(sent, dict) and isinstance(kept, dict) and isinstance(shown, dict):
        return {
            name: _restore(value, shown[name], kept[name]) if name in kept else value
            for name, value in sent.items()
        }
    if isinstance(sent, list | tuple) and isinstance(kept, list | tuple):
        return _restore_words(list(sent), list(shown), list(kept))
    return kept if sent == shown else sent


def _restore_words(sent: list[Any], shown: list[Any], kept: list[Any]) -> list[Any]:
    """Restore arguments, which may have moved: a mask stands for the value after the same flag."""
    if sent == shown:
        return kept
    before = ["", *shown]
    restored = []
    for at, word in enumerate(sent):
        if not isinstance(word, str) or MASK not in word:
            restored.append(word)
            continue
        flag = sent[at - 1] if at else ""
        found = {
            value
            for place, value in enumerate(kept)
            if shown[place] == word and (word != MASK or before[place] == flag)
        }
        restored.append(found.pop() if len(found) == 1 else word)
    return restored


def _changed_target(restored: dict[str, Any], kept: dict[str, Any]) -> str | None:
    """Name what changed in the target of a connection; None when nothing did."""
    if restored.get("command") != kept.get("command"):
        return "its command"
    if _operands(restored) != _operands(kept):
        return "what its arguments name"
    if _origin(restored) != _origin(kept):
        return "the origin of its url"
    return None


def _operands(config: dict[str, Any]) -> list[str]:
    """Return the arguments of a connection, without bare flags and secrets."""
    words = config.get("args")
    found: list[str] = []
    before = ""
    for word in words if isinstance(words, list | tuple) else ():
        text = word if isinstance(word, str) else ""
        name, is_pair, _ = text.partition("=")
        is_secret = _is_value_of_secret_flag(before, text) or (is_pair and is_secret_name(name))
        if not is_secret and not _BARE_FLAG.fullmatch(text):
            found.append(text)
        before = text
    return found


def _origin(config: dict[str, Any]) -> tuple[str, str] | None:
    """Return scheme and host with port of a connection; variables in them as they are written."""
    url = config.get("url") or config.get("base_url")
    if not isinstance(url, str):
        return None
    scheme, _, rest = url.partition("://")
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2].lower()
    default = {"https": ":443", "http": ":80"}.get(scheme.lower(), "")
    return scheme.lower(), host.removesuffix(default) if default else host
