"""Tells which names stand for secrets: of variables, flags, headers, parameters, JSON members.

There are two answers. ``is_secret_name`` is wide, for names whose own value is masked: to mask in
vain costs nothing. ``is_credential_name`` is narrow, for names whose value is then hidden wherever
it occurs: ``--api-key`` and ``apiKey``, but not ``--keyspace``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

SECRET_WORDS: Final = (
    "password",
    "token",
    "secret",
    "key",
    "credential",
    "authorization",
    "cookie",
)
"""In any part of a name, in any case."""

_WITH_K: Final = tuple(word for word in SECRET_WORDS if "k" in word)
_WITHOUT: Final = tuple(word for word in SECRET_WORDS if "k" not in word)
# To go from one k to the next is faster than to look for words that are as short as these.
_FROM_K: Final = re.compile(f"k(?:{'|'.join(word.partition('k')[2] for word in _WITH_K)})")

_ENDINGS: Final = ("key", "token", "cookie")
"""Short enough to begin other words: these count at the end of one."""
_ANYWHERE: Final = tuple(word for word in SECRET_WORDS if word not in _ENDINGS)
_WORD: Final = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_ALSO_NAMED: Final = re.compile(
    r"(\b|[-_])(pass|passwd|passphrase|seed[-_]phrase|mnemonic|auth|bearer|pat|jwt|psk|creds?)$"
    r"|(\b|[-_])(sig|signature)$|[-_]pwd$"
    r"|^pg(password|sslpassword)$"
)


def names_secret(text: str) -> bool:
    """Whether a secret's name is anywhere in a text."""
    lowered = text.lower()
    words = _WITHOUT if _FROM_K.search(lowered) is None else SECRET_WORDS
    for word in words:  # noqa: SIM110 - a generator costs more than the search
        if word in lowered:
            return True
    return False


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether the value under this name is masked. Cached: names recur."""
    return names_secret(name) or _ALSO_NAMED.search(name.lower()) is not None


def is_credential_name(name: str) -> bool:
    """Whether the value under this name is a secret wherever else it occurs."""
    lowered = name.lower()
    if _ALSO_NAMED.search(lowered):
        return True
    if not is_secret_name(name):  # true of nearly all names, and cached
        return False
    return any(word in lowered for word in _ANYWHERE) or any(
        word.lower().removesuffix("s").endswith(_ENDINGS) for word in _WORD.findall(name)
    )
