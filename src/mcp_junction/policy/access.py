"""AccessPolicy: says what each principal may use.

It is asked for every list, search and call. Where there is none, everybody may use everything;
whether a role may call at all is another question (``principal.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mcp_junction.policy.principal import Principal

Admits = Callable[[str], bool]
"""Says whether the name or URI of one server's item is admitted."""


def admit_all(_: str) -> bool:
    """Say that any name is admitted. The one function that does: what is whole is known by it."""
    return True


class Grants(Protocol):
    """What one principal may use. A change makes another object, so that this one never changes.

    ``kind`` is ``tools``, ``prompts`` or ``resources``, and names are those that a server itself
    uses.
    """

    def of(self, kind: str, server: str) -> Admits | None:
        """What it may use of a server: says of each name whether it may; None if nothing."""
        ...

    def names(self, server: str) -> bool:
        """Whether something is granted on this very server, rather than on all servers.

        Its principal then knows that there is such a server, whether anything matches or not.
        """
        ...


class AccessPolicy(Protocol):
    """Who may use what, as it is decided now.

    One that has a ``version``, another number after each change, is asked again only after that.
    """

    def grants(self, principal: Principal) -> Grants | None:
        """What a principal may use; None is everything. The same object until that changes."""
        ...
