"""Detects secrets: by the name they stand under, or by what the value looks like."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

T = TypeVar("T")

MOST: Final = 4_096
LONGEST: Final = 100


class Memo(dict[str, T]):
    """Caches a pure function of a text. Long texts are not cached; a full cache is emptied."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Callable[[str], T]) -> None:
        self._answer = answer

    def __missing__(self, text: str) -> T:
        answer = self._answer(text)
        if len(text) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[text] = answer
        return answer


SECRET_WORDS: Final = (
    "password",
    "token",
    "secret",
    "key",
    "credential",
    "authorization",
    "cookie",
)
"""Words that make a name a secret's, anywhere in it, in any case."""

_WITH_K: Final = tuple(word for word in SECRET_WORDS if "k" in word)
# Faster than to search for each of these short words: texts have few letters k.
_FROM_K: Final = re.compile(f"k(?:{'|'.join(word.partition('k')[2] for word in _WITH_K)})")

_ENDINGS: Final = ("key", "token", "cookie")
"""These begin other words, too (keyboard): they count at the end of a word only."""
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
    return (  # the words of SECRET_WORDS one by one: a loop costs more than the search
        "password" in lowered
        or "secret" in lowered
        or "credential" in lowered
        or "authorization" in lowered
        or (_FROM_K.search(lowered) is not None and any(word in lowered for word in _WITH_K))
    )


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether the value under this name is masked. Cached: names recur."""
    return names_secret(name) or _ALSO_NAMED.search(name.lower()) is not None


def is_credential_name(name: str) -> bool:
    """Whether the value under this name is masked wherever it occurs."""
    lowered = name.lower()
    if _ALSO_NAMED.search(lowered):
        return True
    if not is_secret_name(name):  # true of nearly all names, and cached
        return False
    return any(word in lowered for word in _ANYWHERE) or any(
        word.lower().removesuffix("s").endswith(_ENDINGS) for word in _WORD.findall(name)
    )


_PATH: Final = re.compile(r"[/~]|\.\.?/|[A-Za-z]:[\\/]")
_PARTS: Final = re.compile(r"[^\s\"'{}\[\],;]+")
_LONGEST: Final = 200
"""A longer word is not ordinary, unless it is a path."""
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

_TOKEN: Final = re.compile(
    r"""
    (?: sk|pk|rk|ak|api|key|tok|token|secret|pat|glpat|gldt|gh[opsur]|github_pat|npm|pypi|hf|dop_v1
      | xox[abeoprs]|xapp|shp(?:at|ca|pa|ss)|lin_api|figd|ntn|whsec|dckr_pat|sntrys|nvapi|gsk|r8
      | tvly|fc|ctx7sk|nfp|sbp|sq0[a-z]{3}|EAA[A-Za-z]?|ops|hvs|hvb|atlasv1|PMAK|NRAK|rnd|vercel
    )[-_][A-Za-z0-9_.+/=-]{6,}
    | (?:AKIA|ASIA|AROA)[A-Z0-9]{12,} | AIza[A-Za-z0-9_-]{20,} | ya29\.[A-Za-z0-9_-]{10,}
    | SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}
    | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?
    | [0-9a-fA-F]{32,}
    | (?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=(?:\D*\d){2})[A-Za-z0-9_+/=-]{20,}
    """,
    re.VERBOSE,
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def unusual_parts(value: str) -> list[str]:
    """Return the words of a value that look like secrets."""
    if _PATH.match(value):
        return []
    return [part for part in _PARTS.findall(value) if not is_ordinary(part)]


def is_ordinary(part: str) -> bool:
    """Whether a word is an ordinary value: a path, a word, a number, a host."""
    if _PATH.match(part):
        return True
    if len(part) > _LONGEST:
        return False
    if url := _URL.fullmatch(part):
        return not any(_RANDOM.fullmatch(piece) for piece in _URL_PARTS.split(url[1]))
    return _ORDINARY.fullmatch(part) is not None or not any(map(str.isalnum, part))


def is_token(word: str) -> bool:
    """Whether a word has the form of a credential."""
    return _TOKEN.fullmatch(word) is not None and _COMMIT.fullmatch(word) is None
