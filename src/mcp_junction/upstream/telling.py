"""Telling: which names call a value a secret, and which values are plainly none.

A name tells when a word of it does: ``--api-key`` and ``apiKey``, but not ``--keyspace``. This is
narrower than ``policy/secrecy.py``, where a name that is hidden in vain costs nothing: here each
occurrence of its value in a message would be hidden.

A value is ordinary when it is what messages are about: a path, a word or a few, a number, a host,
a region, a url that holds nothing else. What looks random is not, and neither is what is in doubt.
"""

from __future__ import annotations

import re
from typing import Final

from mcp_junction.policy.secrecy import SECRET_WORDS, is_secret

_ENDINGS: Final = ("key", "token", "cookie")
"""Short enough to begin other words: these count at the end of one."""
_ANYWHERE: Final = tuple(word for word in SECRET_WORDS if word not in _ENDINGS)
_WORD: Final = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_ALSO_NAMED: Final = re.compile(
    r"(\b|[-_])(pass|passwd|passphrase|seed[-_]phrase|mnemonic|auth|bearer|pat)$|[-_]pwd$"
)

_PATH: Final = re.compile(r"[/~]|\.\.?/|[A-Za-z]:[\\/]")
_PARTS: Final = re.compile(r"[^\s\"'{}\[\],;]+")
_LONGEST: Final = 200
"""What is longer than this is not ordinary, unless it is a path or several words."""
_COMPASS: Final = "(?:north|south|east|west|central){1,2}"
_ORDINARY: Final = re.compile(
    r"""
    -{0,2}[A-Z]?[a-z]{1,12}(?:[-_./][A-Z]?[a-z]{1,12}){0,3}:?   # words, flags, types, names
    | [A-Z]{1,8}:?                                              # levels
    | [A-Z]?[a-z]{1,12}:\d{1,5}                                 # localhost:80
    | (?:[a-z][a-z-]{0,19}\d{0,2}\.){1,6}[a-z]{2,12}(?::\d{1,5})?
    | v?[-+]?(?:\d{1,10}|\d{1,5}(?:[.,:/_-]\d{1,5}){1,7})[a-zA-Z]{0,2}
    """
    rf"| [a-z]{{2,12}}(?:-gov)?-{_COMPASS}-?\d{{1,2}}[a-z]?",
    re.VERBOSE,
)
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]{1,20}://([^@]+)")
_URL_PARTS: Final = re.compile(r"[/?&=#:.,]+")
_RANDOM: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{8,}|(?=.*[a-z])(?=.*[A-Z]).{12,}|.{25,}")


def calls_secret(name: str) -> bool:
    """Whether a variable, a flag, a header or a parameter of this name holds a secret."""
    lowered = name.lower()
    if _ALSO_NAMED.search(lowered):
        return True
    if not is_secret(name):  # of nearly all names, and known by heart
        return False
    return any(word in lowered for word in _ANYWHERE) or any(
        word.lower().removesuffix("s").endswith(_ENDINGS) for word in _WORD.findall(name)
    )


def unusual_parts(value: str) -> list[str]:
    """The words of a value that may be secrets, though nothing says so."""
    if _PATH.match(value):
        return []
    return [part for part in _PARTS.findall(value) if not _is_ordinary(part)]


def _is_ordinary(part: str) -> bool:
    if _PATH.match(part):
        return True
    if len(part) > _LONGEST:
        return False
    if url := _URL.fullmatch(part):
        return not any(_RANDOM.fullmatch(piece) for piece in _URL_PARTS.split(url[1]))
    return _ORDINARY.fullmatch(part) is not None or not any(map(str.isalnum, part))
