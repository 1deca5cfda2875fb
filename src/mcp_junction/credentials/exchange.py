"""ExchangeSource: the token that a caller's own access token is exchanged for (RFC 8693).

The caller's token goes to the token endpoint of the issuer that the operator named, and nowhere
else. What comes of it is kept in memory, for this caller, and no longer than the caller's token is
good. Of several tokens of one caller the one with the fewest scopes counts, so that none gives what
only another would.
"""

from __future__ import annotations

import time
from typing import Any, Final

from mcp_junction.credentials.flow import OAuthFlow
from mcp_junction.credentials.source import AuthState, CredentialSource
from mcp_junction.credentials.subjects import SubjectToken, exchange_subject
from mcp_junction.errors import OAuthError
from mcp_junction.oauth.tokens import STEP
from mcp_junction.upstream.outcome import Outcome

_NO_TOKEN: Final = "it is called with an access token of the door's issuer alone"
_MOST_CHANGES: Final = 3


class ExchangeSource(CredentialSource):
    """The token of one caller. Renewed by exchanging what the caller shows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.must_wait = True
        self.scopes = self.auth.scopes
        self._exchanged = self._refused = ""

    async def prepare(self) -> Outcome | None:
        await self._renew_shared()
        return self.refusal() if self.must_wait else None

    def _find(self) -> SubjectToken | None:
        tokens = self.owner.subject_tokens
        if tokens is None:
            return None
        held = tokens.held_by(lambda principal: exchange_subject(principal) == self.subject)
        return min(held, key=lambda one: (one.scopes, -one.expires_at), default=None)

    def follow(self) -> None:
        """Stop using a token that came of another one than would be exchanged now.

        Links that wait for a credential try again when there is something to exchange.
        """
        held = self._find()
        if held is None:
            self._exchanged = ""
            self._drop(AuthState.NEEDS_SIGN_IN, _NO_TOKEN)
        elif held.text not in (self._exchanged, self._refused):
            self._exchanged = ""
            self._drop(AuthState.NONE, "")

    @property
    def _can_renew(self) -> bool:
        held, end = self._find(), self.expires_at
        return held is not None and end is not None and held.expires_at > end + 1

    async def _renew(self, version: int) -> None:
        for _ in range(_MOST_CHANGES):
            held = self._find()
            if held is None:
                self._drop(AuthState.NEEDS_SIGN_IN, _NO_TOKEN)
                return
            if held.text == self._refused:
                return  # its issuer would say the same
            if await self._exchange(held, version):
                return

    async def _exchange(self, held: SubjectToken, version: int) -> bool:
        """Exchange a token; False when the caller has shown another one meanwhile."""
        try:
            answer, issuer = await OAuthFlow(self.definition).exchange_token(held.text, self.scopes)
        except OAuthError as error:
            if error.step != STEP or error.status not in (400, 401, 403):
                raise
            self._refused = held.text
            self._drop(AuthState.REFUSED, str(error))
            return True
        now = self._find()
        if now is None or now.text != held.text:
            return False
        ends = held.expires_at
        if answer.expires_at is not None:
            ends = min(ends, answer.expires_at)
        self.issuer, self._exchanged, self._refused = issuer, held.text, ""
        self._adopt(version + 1, answer.access, ends, time.time())
        return True

    def _expire(self) -> None:
        super()._expire()
        self._exchanged = ""
        self.owner.forget(self)
