"""Reads ``WWW-Authenticate``: which token a server asks for. What follows is decided elsewhere."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_GAP: Final = re.compile(r"[\s,]*")
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME: Final = re.compile(rf"({_TOKEN})(?=\s|,|$)")
_PARAM: Final = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_TOKEN68: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")
_ESCAPED: Final = re.compile(r"\\(.)")
_LONGEST: Final = 16_384
INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class BearerChallenge(msgspec.Struct, frozen=True):
    """What a server that wants a bearer token says of it; empty where it says nothing."""

    resource_metadata: str = ""
    scope: str = ""
    error: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs, as far as the server names them."""
        return tuple(self.scope.split())

    @property
    def wants_scope(self) -> bool:
        """Whether the token was good, and only its scopes are not enough."""
        return self.error == INSUFFICIENT_SCOPE


def read_challenge(header: bytes | None) -> BearerChallenge | None:
    """Read the bearer challenge of a header, which may join several; None when there is none."""
    if not header or len(header) > _LONGEST:
        return None
    found = [
        params for scheme, params in _split(header.decode("latin-1")) if scheme.lower() == "bearer"
    ]
    if not found:
        return None
    best = next((params for params in found if "resource_metadata" in params), found[0])
    fields = ("resource_metadata", "scope", "error")
    return BearerChallenge(*(best.get(name, "") for name in fields))


def _split(text: str) -> list[tuple[str, dict[str, str]]]:
    """Split a list of challenges into schemes and their parameters; the rest is left out."""
    found: list[tuple[str, dict[str, str]]] = []
    at = _skip(text, 0)
    while at < len(text):
        if found and (param := _PARAM.match(text, at)) is not None:
            quoted, plain = param[2], param[3]
            value = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            found[-1][1].setdefault(param[1].lower(), value)
        elif (param := _SCHEME.match(text, at)) is not None:
            found.append((param[1], {}))
        elif (param := _TOKEN68.match(text, at)) is None:
            break  # what cannot be read ends the list
        at = _skip(text, param.end())
    return found


def _skip(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap is not None else at
