"""Redacts parameters, results and details of calls for the audit.

Parameters are stored as a SHA-256 of their redacted, canonical form; results as the redacted
beginning of their text. Values under a secret's name are removed, in JSON, in JSON inside strings
and in ``name=value`` text; so are all values that are known secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcp_junction.redaction.detect import LONGEST, SECRET_WORDS, Memo, names_secret
from mcp_junction.redaction.texts import KNOWN, KnownSecrets

SUMMARY: Final = 500
LOOKED_AT: Final = 1_000
"""Bytes of a result that its summary is made from."""
REDACTED: Final = "[REDACTED]"
_LONGEST: Final = 2_000
_SECRET: Final = Memo(names_secret)
_HARMLESS: Final[set[str]] = set()
"""Names that were found not to be a secret's."""
_MAX_HARMLESS: Final = 4_096
_NESTED: Final = frozenset((dict, list))
_NOTHING: Final = sha256()

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode
# A name that holds one of the words, what joins it to its value, and the value. An object or a list
# is taken to the end: where it ends cannot be seen in a text that was cut.
_BARE: Final = r"""[^\s,;&}\]"'\\]+"""
_NAMED: Final = re.compile(
    rf"""(?P<name>(?<![\w.-])[\w.-]*(?:{"|".join(SECRET_WORDS)})[\w.-]*+\\*["']?\s*[:=]\s*)"""
    r"""(?:[\[{].*"""
    r"""|(?P<quote>\\*["'])(?:(?!(?<!\\)(?P=quote)).)*(?:(?P=quote)|$)"""
    rf"""|(?:(?:bearer|basic|digest)\s+)?{_BARE}(?:;\s*[\w-]+={_BARE})*)""",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN: Final = rf"\g<name>{REDACTED}"


def digest_params(params: bytes | None) -> str | None:
    """Hash redacted parameters; equal for equal values, however they are written."""
    if params is None:
        return None
    try:
        return digest_value(_decode(params))
    except (ValueError, RecursionError):  # it is not JSON, or too deep to be read
        return sha256(params).hexdigest()


def digest_value(value: Any) -> str:
    """Hash parameters that were decoded already."""
    if _has_secret(value):
        value = redact_value(value, texts=False)
    state = _NOTHING.copy()  # cheaper than a new one
    state.update(_encode(value))
    return state.hexdigest()


def _has_secret(value: Any) -> bool:
    """Whether a value has a secret's name in it. Cheaper than redacting it."""
    if type(value) is dict:
        if not _HARMLESS.issuperset(value) and not _are_harmless(value):
            return True
        value = value.values()
    elif type(value) is not list:
        return False
    # A generator costs more: most values have few members, and none nested.
    for inner in value:  # noqa: SIM110
        if type(inner) in _NESTED and _has_secret(inner):
            return True
    return False


def _are_harmless(names: Iterable[str]) -> bool:
    """Whether none of some names is a secret's; remembered, because names recur."""
    for name in names:
        if _SECRET[name]:
            return False
        if len(name) <= LONGEST:
            if len(_HARMLESS) >= _MAX_HARMLESS:
                _HARMLESS.clear()
            _HARMLESS.add(name)
    return True


def redact_value(value: Any, *, texts: bool = True, known: KnownSecrets = KNOWN) -> Any:
    """Redact the values under a secret's name in a JSON value; inside its ``texts``, too."""
    if isinstance(value, dict):
        return {
            name: REDACTED if _SECRET[name] else redact_value(inner, texts=texts, known=known)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [redact_value(inner, texts=texts, known=known) for inner in value]
    if texts and isinstance(value, str):
        return redact_named_values(known.redact(value)[:_LONGEST])
    return value


def redact_named_values(text: str) -> str:
    """Redact the values that follow a secret's name in a text."""
    return _NAMED.sub(_HIDDEN, text) if names_secret(text) else text


def summarize(
    result: bytes | None, server_id: str | None = None, known: KnownSecrets = KNOWN
) -> str | None:
    """Return the beginning of a result, redacted."""
    if result is None:
        return None
    text = result[:LOOKED_AT].decode("utf-8", "replace")
    if known.may_occur_in(text, server_id):
        text = known.redact(text, server_id, is_cut=len(result) >= LOOKED_AT)
    shown = text[:SUMMARY]
    if names_secret(shown):  # only a name that is shown can have its value shown
        shown = _NAMED.sub(_HIDDEN, text)[:SUMMARY]
    return shown if "\0" not in shown else clean(shown)


def may_show_secret(
    results: Iterable[bytes | msgspec.Raw],
    server_ids: Iterable[str | None],
    known: KnownSecrets = KNOWN,
) -> bool:
    """Whether the summary of one of these results has to be redacted, or cleaned.

    One look at all of them costs far less than a look at each. Those of other servers are looked
    at for the weak secrets of each server, too.
    """
    text = b"\n".join(results).decode("utf-8", "replace")
    if names_secret(text) or "\0" in text or known.may_occur_in(text):
        return True
    return known.has_weak and any(known.may_occur_in(text, one) for one in set(server_ids))


def clean(text: str) -> str:
    """Replace what a database does not store: NUL and lone surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
