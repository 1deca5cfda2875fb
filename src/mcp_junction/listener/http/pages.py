"""The pages that we show to people: how they look, and who has shown a key in a browser.

A person shows a key once in a form; a signed cookie stands for it for an hour, as long as the key
is in force. Whether that principal may do what a page is for, the page decides
(``sign_in_pages.py``, ``approval_pages.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.policy.principal import Principal, Role

_SESSION_LIFE: Final = 3600
_SESSION: Final = "junction-session"
_PURPOSE: Final = "sign-in session"
_FORM: Final = "page form"
_MAX_BODY: Final = 16_384
PAGE_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # With no-referrer browsers would post our forms as of the origin null, which is not let in.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    ),
)
_STYLE: Final = (
    "body{font:16px/1.5 system-ui;max-width:34rem;margin:4rem auto;padding:0 1rem}"
    "input,button{font:inherit;padding:.4rem .8rem}code{background:#eee;padding:0 .2rem}"
    "pre{background:#eee;padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}"
)

Cookie = tuple[bytes, bytes]


class SessionSigner(Protocol):
    """Signs the cookie of whoever has shown a key."""

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool: ...


class PageSessions:
    """Knows the principals that have shown their keys in browsers."""

    def __init__(
        self,
        identify: Callable[[dict[bytes, bytes], Scope], Principal | None],
        is_in_force: Callable[[Principal], bool],
        signer: SessionSigner,
        public_url: Callable[[], str],
    ) -> None:
        """``identify`` finds the principal of a request, by its key or as the owner."""
        self._identify = identify
        self._is_in_force = is_in_force
        self._signer = signer
        self._public_url = public_url

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
            if not self._signer.verify(given, mac, _PURPOSE):
                return None
            name, role, key, until = msgspec.json.decode(given, type=tuple[str, Role, str, int])
        except (ValueError, msgspec.MsgspecError):
            return None
        principal = Principal(name, role, key)
        return principal if until > time.time() and self._is_in_force(principal) else None

    def accept_key(self, key: str, scope: Scope) -> tuple[Principal, Cookie] | None:
        """Return whose key was shown, and the cookie that stands for it; None if it is not good."""
        shown = {b"authorization": b"Bearer " + key.strip().encode()}
        principal = self._identify(shown, scope)
        if principal is None:
            return None
        until = int(time.time()) + _SESSION_LIFE
        given = msgspec.json.encode([principal.id, principal.role, principal.key, until])
        value = f"{given.hex()}.{self._signer.sign(given, _PURPOSE).hex()}"
        return principal, self.make_cookie(_SESSION, value, _SESSION_LIFE)

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


async def read_form(scope: Scope, receive: Receive) -> dict[str, str]:
    """Read the fields of a form that was posted."""
    if scope["method"] != "POST":
        return {}
    exchange: Any = scope.get("exchange")
    if exchange is not None:
        body = (exchange.body or b"")[:_MAX_BODY]
    else:
        message = await receive()
        body = bytes(message.get("body", b""))[:_MAX_BODY]
    return dict(parse_qsl(body.decode("latin-1")))


async def ask_for_key(send: Send, title: str, whose: str, why: str) -> None:
    """Show the form in which a key is shown; ``whose`` is HTML."""
    body = (
        f"<h1>{escape(title)}</h1><p>{escape(why)}</p>"
        f"<p>To go on, show {whose} of this gateway.</p>"
        '<form method="post"><input type="password" name="key" autocomplete="off" autofocus>'
        " <button>Go on</button></form>"
    )
    await send_page(send, 401 if why else 200, body, is_html=True)


async def send_page(
    send: Send,
    status: int,
    body: str,
    *,
    is_html: bool = False,
    more: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a page; what is no HTML is shown as one paragraph."""
    inner = body if is_html else f"<p>{escape(body)}</p>"
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Junction</title>'
        f"<style>{_STYLE}</style>{inner}</html>"
    )
    await send_body(send, status, text.encode(), [*PAGE_HEADERS, *(more or [])])


async def send_body(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Send a whole response."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
