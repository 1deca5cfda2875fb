"""PageSessions: knows who has shown a key or an access token in a browser.

A person shows it once in a form; a signed cookie stands for it for an hour, as long as the key is
in force, or the token is neither expired nor revoked. The cookie holds neither. Whether that
principal may do what a page is for, the page decides (``sign_in_pages.py``, ``approval_pages.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from mcp_junction.audit.denials import Denial
from mcp_junction.errors import IssuerUnavailable, TokenRefused
from mcp_junction.identity.tokens import TokenLife
from mcp_junction.listener.http.guard import describe_denial
from mcp_junction.listener.http.host import Scope, Send
from mcp_junction.listener.http.pages import Cookie, ask_for_key, send_again
from mcp_junction.policy.principal import Principal, Role

_SESSION_LIFE: Final = 3600
_SESSION: Final = "junction-session"
_PURPOSE: Final = "sign-in session"
_FORM: Final = "page form"
_NOT_VALID: Final = "That key is not valid."


class SessionSigner(Protocol):
    """Signs the cookie of whoever has shown a key."""

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool: ...


class ShownCredentials(Protocol):
    """Checks keys and access tokens that people show."""

    def principal(self, authorization: bytes) -> Principal | None: ...

    async def verify(self, authorization: bytes) -> Principal | None:
        """Verify an access token. Raises TokenRefused, IssuerUnavailable."""
        ...

    def find_life(self, authorization: bytes) -> TokenLife | None: ...

    def is_session_good(self, principal: Principal, life: TokenLife | None) -> bool: ...


class _PageSession(msgspec.Struct, frozen=True, array_like=True):
    """What a cookie says."""

    id: str
    role: Role
    key: str
    until: float
    life: TokenLife | None


class PageSessions:
    """The principals that have shown their keys or access tokens in browsers."""

    def __init__(
        self,
        identify: Callable[[dict[bytes, bytes], Scope], Principal | None],
        credentials: ShownCredentials | None,
        signer: SessionSigner,
        public_url: Callable[[], str],
        deny: Callable[[Denial], None] | None = None,
        issuer: str = "",
    ) -> None:
        """``identify`` finds the owner; without ``credentials`` there is nobody else.

        ``issuer`` is that of access tokens, where these are accepted. ``deny`` records refusals.
        """
        self._identify = identify
        self._credentials = credentials
        self._signer = signer
        self._public_url = public_url
        self._deny = deny
        self._issuer = issuer

    def find_owner(self, scope: Scope) -> Principal | None:
        """Return the owner, if the request is the owner's own on this machine."""
        headers = dict(scope["headers"])
        headers.pop(b"authorization", None)  # a browser has none
        return self._identify(headers, scope)

    def find_principal(self, scope: Scope) -> Principal | None:
        """Return the principal that has shown its key in this browser, if that is still good."""
        value = self.read_cookie(scope, _SESSION)
        try:
            given, mac = (bytes.fromhex(part) for part in value.split("."))
            if self._credentials is None or not self._signer.verify(given, mac, _PURPOSE):
                return None
            said = msgspec.json.decode(given, type=_PageSession)
        except (ValueError, msgspec.MsgspecError):
            return None
        principal = Principal(said.id, said.role, said.key)
        is_good = said.until > time.time()
        is_good = is_good and self._credentials.is_session_good(principal, said.life)
        return principal if is_good else None

    # -- showing a key or a token

    async def ask(self, send: Send, title: str, whose: str, why: str = "") -> None:
        """Show the form in which a key is shown; ``whose`` is HTML."""
        await ask_for_key(send, title, whose, self._issuer, why)

    async def accept(self, scope: Scope, send: Send, text: str, title: str, whose: str) -> None:
        """Take the key or token that a form has shown, and have the page asked for anew.

        So a browser that reloads the page does not send the key again.
        """
        shown = b"Bearer " + text.strip().encode()
        try:
            principal = await self._find_shown(shown)
            why = _NOT_VALID
        except TokenRefused as refused:
            principal, why = None, f"That is not accepted: {refused}."
        except IssuerUnavailable as error:
            await ask_for_key(send, title, whose, self._issuer, f"{error}.", 503)
            return
        if principal is None:
            self._note_refused(scope, why)
            await self.ask(send, title, whose, why)
            return
        await send_again(scope, send, [self._make_session(principal, shown)])

    async def _find_shown(self, authorization: bytes) -> Principal | None:
        """Find whose key or token is shown. Raises TokenRefused, IssuerUnavailable."""
        credentials = self._credentials
        if credentials is None:
            return None
        found = credentials.principal(authorization)
        if found is None and authorization.count(b".") == 2:
            found = await credentials.verify(authorization)
        return found

    def _make_session(self, principal: Principal, authorization: bytes) -> Cookie:
        assert self._credentials is not None, "it has found the principal"
        life, now = self._credentials.find_life(authorization), time.time()
        until = min(now + _SESSION_LIFE, now + _SESSION_LIFE if life is None else life.expires_at)
        said = _PageSession(principal.id, principal.role, principal.key, until, life)
        given = msgspec.json.encode(said)
        value = f"{given.hex()}.{self._signer.sign(given, _PURPOSE).hex()}"
        return self.make_cookie(_SESSION, value, max(int(until - now), 1))

    async def refuse(
        self, scope: Scope, send: Send, principal: Principal, why: str, title: str, whose: str
    ) -> None:
        """Refuse a principal what it wants of a page; it may show another key."""
        self._note_refused(scope, why, principal)
        await ask_for_key(send, title, whose, self._issuer, f"This is not for you: {why}.", 403)

    def _note_refused(self, scope: Scope, why: str, principal: Principal | None = None) -> None:
        """Put a refusal on record."""
        if self._deny is not None:
            self._deny(describe_denial(scope, why, principal))

    # -- forms of our own

    def sign_form(self, principal: Principal, subject: str) -> str:
        """Make the text by which a form shows that this page was shown to this principal."""
        return self._signer.sign(_describe_form(principal, subject), _FORM).hex()

    def is_own_form(self, principal: Principal, subject: str, given: str) -> bool:
        """Whether a form comes from a page that was shown to this principal."""
        try:
            mac = bytes.fromhex(given)
        except ValueError:
            return False
        return self._signer.verify(_describe_form(principal, subject), mac, _FORM)

    # -- cookies

    def make_cookie(self, name: str, value: str, life: int) -> Cookie:
        """Make the header that sets a cookie."""
        secure = "; Secure" if self._is_secure else ""
        text = f"{self._name(name)}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Lax"
        return b"set-cookie", (text + secure).encode("ascii")

    def read_cookie(self, scope: Scope, name: str) -> str:
        """Return the value of a cookie; empty if it is not there."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        pairs = headers.get(b"cookie", b"").decode("latin-1").split(";")
        found = {key.strip(): value for key, _, value in (one.partition("=") for one in pairs)}
        return found.get(self._name(name), "")

    @property
    def _is_secure(self) -> bool:
        return self._public_url().startswith("https://")

    def _name(self, name: str) -> str:
        return f"__Host-{name}" if self._is_secure else name


def _describe_form(principal: Principal, subject: str) -> bytes:
    return msgspec.json.encode([principal.id, principal.role, principal.key, subject])
