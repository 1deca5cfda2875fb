"""AccessPolicy: says what each principal may use.

It is asked for every list, search and call. Where there is none, everybody may use everything;
whether a role may call at all is another question (``principal.py``).
"""

from __future__ import annotations

from typing import Protocol

from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair


class Grants(Protocol):
    """What one principal may use. A change makes another object, so that this one never changes.

    ``kind`` is ``tools``, ``prompts`` or ``resources``; a pair is a server's key, and the name or
    URI that the server itself uses.
    """

    def admits(self, kind: str, pair: Pair) -> bool:
        """Whether it may use this."""
        ...

    def admits_server(self, kind: str, server: str) -> bool:
        """Whether it may use anything of a server, whatever that offers."""
        ...


class AccessPolicy(Protocol):
    """Who may use what, as it is decided now."""

    def grants(self, principal: Principal) -> Grants | None:
        """What a principal may use; None is everything. The same object until that changes."""
        ...
