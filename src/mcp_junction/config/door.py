"""DoorConfig: whose access tokens ``serve`` accepts, and what they give; read from the config file.

A *condition* names something that a token has: a scope (``files.read``), or a claim and its value
(``groups=admins``, ``realm_access.roles=admins``). Tokens are verified in ``identity/tokens.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mcp_junction.config.document import child_path
from mcp_junction.errors import Problem, invalid_at

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "Ed25519")
"""The signatures that can be accepted. None of them is made with a shared secret."""
ROLES: Final = ("admin", "orchestrator", "agent", "viewer")
PATH: Final = "$.junction.door"
_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CONDITION: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,255}")
_MAX: Final = 1_000


class DoorConfig(NamedTuple):
    """The issuer of access tokens, and what is accepted of it."""

    issuer: str
    alias: str
    """What stands before the ids of its agents."""
    audience: tuple[str, ...] = ()
    """Empty: the addresses of our endpoints."""
    algorithms: tuple[str, ...] = ALGORITHMS
    roles: Mapping[str, str] = {}
    """Roles by condition; the first that a token fulfils counts, and without one it is an agent."""
    agent_claim: str = "sub"
    grants: Mapping[str, tuple[str, ...]] = {}
    """Patterns of what an agent may use, by condition."""
    jwks_uri: str = ""
    """Where the issuer's keys are, if its metadata does not say."""
    required_scopes: tuple[str, ...] = ()
    """What every token must have to be let in at all."""

    @property
    def scopes(self) -> list[str]:
        """The scopes that mean something here."""
        conditions = dict.fromkeys((*self.required_scopes, *self.roles, *self.grants))
        return [condition for condition in conditions if "=" not in condition]


def read_door(value: Any) -> tuple[DoorConfig | None, list[Problem]]:
    """Read the member ``door`` of the file; collect everything that is wrong with it."""
    if value is None:
        return None, []
    if not isinstance(value, dict):
        return None, [invalid_at(PATH, "must be an object with the issuer of access tokens")]
    reader = _DoorReader(value)
    return reader.door if not reader.problems else None, reader.problems


class _DoorReader:
    """Reads the members of a door."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self.problems = [
            invalid_at(child_path(PATH, key), "is not a member that is known here")
            for key in values
            if key not in DoorConfig._fields
        ]
        issuer = self._url("issuer", is_needed=True)
        self.door = DoorConfig(
            issuer,
            self._alias(issuer),
            self._texts("audience"),
            self._algorithms(),
            self._mapping("roles", _is_role, f"must be one of {', '.join(ROLES)}"),
            self._text("agent_claim", "sub"),
            {
                key: tuple(patterns)
                for key, patterns in self._mapping(
                    "grants", _is_texts, 'must be an array of patterns like ["files.read_*"]'
                ).items()
            },
            self._url("jwks_uri"),
            self._scopes("required_scopes"),
        )

    def _url(self, name: str, *, is_needed: bool = False) -> str:
        # Imported late: few have a door.
        from mcp_junction.config.urls import parse_address, parse_url

        text = self._text(name, "")
        if not text:
            if is_needed:
                self._wrong(name, "is missing: the address of the authorization server")
            return ""
        try:
            place = parse_url(text)
        except ValueError as error:
            self._wrong(name, str(error))
            return ""
        address = parse_address(place.host)
        is_local = place.host == "localhost" or (address is not None and address.is_loopback)
        if not place.tls and not is_local:
            self._wrong(name, "must begin with https://; plain http is for loopback only")
        if "#" in text or (name == "issuer" and "?" in text):
            self._wrong(name, "must have no query and no fragment")
        return text

    def _alias(self, issuer: str) -> str:
        from urllib.parse import urlsplit

        alias = self._text("alias", (urlsplit(issuer).hostname or "door").replace(":", "."))
        if not _ALIAS.fullmatch(alias):
            self._wrong("alias", "must be letters, digits, '-', '_' and '.', at most 63")
        return alias

    def _algorithms(self) -> tuple[str, ...]:
        found = self._texts("algorithms")
        if not set(found) <= set(ALGORITHMS):
            self._wrong("algorithms", f"must be some of {', '.join(ALGORITHMS)}")
        return found or ALGORITHMS

    def _text(self, name: str, default: str) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str) or (not value and name in self._values):
            self._wrong(name, "must be a text that is not empty")
            return default
        return value

    def _texts(self, name: str) -> tuple[str, ...]:
        value = self._values.get(name, [])
        value = [value] if isinstance(value, str) else value
        if not _is_texts(value) and value != []:
            self._wrong(name, "must be an array of texts")
            return ()
        return tuple(value)

    def _scopes(self, name: str) -> tuple[str, ...]:
        found = self._texts(name)
        if not all(_CONDITION.fullmatch(one) and "=" not in one for one in found):
            self._wrong(name, "must be an array of scopes")
        return found

    def _mapping(self, name: str, is_right: Any, words: str) -> dict[str, Any]:
        value = self._values.get(name, {})
        if not isinstance(value, dict) or len(value) > _MAX:
            self._wrong(name, "must be an object: a scope, or claim=value, and what it gives")
            return {}
        for key, given in value.items():
            path = child_path(child_path(PATH, name), key)
            if not _CONDITION.fullmatch(key) and "=" not in key:
                self.problems.append(invalid_at(path, "is neither a scope nor claim=value"))
            if not is_right(given):
                self.problems.append(invalid_at(path, words))
        return value

    def _wrong(self, name: str, message: str) -> None:
        self.problems.append(invalid_at(child_path(PATH, name), message))


def _is_role(value: Any) -> bool:
    return value in ROLES


def _is_texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MAX
        and all(isinstance(one, str) and one for one in value)
    )
