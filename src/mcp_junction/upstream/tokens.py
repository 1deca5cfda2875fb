"""TokenSource: what a link asks for the token of a request, and for another when it is refused.

Protocols only: where tokens come from and how they are kept is in ``credentials/``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.policy.principal import Principal
from mcp_junction.upstream.outcome import Outcome


class AccessToken(msgspec.Struct, eq=False):
    """One version of a credential, as it is sent; replaced whole when it is renewed."""

    version: int
    line: bytes
    """The header line with the token; empty where there is none."""
    is_used: bool = False
    """Whether the server has taken it: what nobody uses is not renewed."""


NO_TOKEN: Final = AccessToken(0, b"")


class TokenSource(Protocol):
    """The credential of one subject for one server."""

    @property
    def current(self) -> AccessToken:
        """The token to send now. Read for every request: keep it cheap."""

    @property
    def must_wait(self) -> bool:
        """Whether nothing may be sent before ``prepare`` was awaited."""

    @property
    def is_signed_out(self) -> bool:
        """Whether the server wants a credential that is not there."""

    @property
    def is_authenticated(self) -> bool | None:
        """Whether there is a credential that is good; None while none is asked for."""

    def for_principal(self, principal: Principal) -> TokenSource:
        """The source of the subject that a principal is to this server: itself, where all share."""

    async def prepare(self) -> Outcome | None:
        """Have a token that can be sent; else return how the call ends."""

    async def renew(
        self, refused: AccessToken, challenge: BearerChallenge | None, *, is_again: bool
    ) -> Outcome | None:
        """Have another token than the one that the server refused; else say how the call ends.

        ``is_again``: the call was sent again already, after an earlier token was refused.
        """

    def wait_for_change(self) -> Awaitable[object]:
        """Return what is done when there is another credential than now, or none is good any more.

        It counts from this call on, not from when it is awaited.
        """

    def refusal(self) -> Outcome:
        """How a call ends while nobody is signed in."""


class TokenSources(Protocol):
    """Knows the credentials of all servers."""

    def source(self, definition: ServerDefinition) -> TokenSource | None:
        """The source of a server's own token; None for one that has no credentials."""
