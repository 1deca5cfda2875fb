"""The pages that we show to people: how they look, and who has shown a key in a browser.

They have no script and load nothing. PageSessions: a person shows a key or an access token once in
a form; a signed cookie stands for it for an hour, as long as the key is in force, or the token is
neither expired nor revoked. The cookie holds neither. Whether that principal may do what a page is
for, the page decides (``sign_in_pages.py``, ``approval_pages.py``).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from html import escape
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from mcp_junction.audit.denials import Denial
from mcp_junction.errors import IssuerUnavailable, TokenRefused
from mcp_junction.identity.tokens import TokenLife
from mcp_junction.listener.http.guard import describe_denial
from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.policy.principal import Principal, Role

if TYPE_CHECKING:  # a stdio mode in which somebody signs in has no keys
    from mcp_junction.identity.keys import KeyRing

_MAX_BODY: Final = 32_768
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
_STYLE: Final = """
:root{color-scheme:light dark;--text:#1b1f24;--page:#fff;--soft:#eef0f3;--line:#767d86;--main:#0b57d0;--on:#fff;--bad:#a4161a}
@media(prefers-color-scheme:dark){:root{--text:#e6e8eb;--page:#16191d;--soft:#262b31;--line:#8f98a3;--main:#9cc0ff;--on:#10151c;--bad:#ff9c9c}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);margin:0}
main{max-width:40rem;margin:0 auto;padding:clamp(1rem,6vh,4rem) 1rem;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 1rem}
h2{font-size:1.1rem;margin:1.25rem 0 .5rem}pre{margin:0 0 1rem}
code,pre{background:var(--soft);border-radius:.25rem;font:.9em/1.5 ui-monospace,monospace}
code{padding:.1rem .3rem}
pre{padding:.75rem;white-space:pre-wrap}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0 0 1rem}
dt{font-weight:600}dd{margin:0;min-width:0}
label{display:block;font-weight:600;margin:0 0 .25rem}
input,textarea,button{font:inherit;color:inherit;border:1px solid var(--line);border-radius:.375rem;padding:.6rem .8rem}
input,textarea{width:100%;background:var(--page);margin:0 0 1rem}
button{min-height:2.75rem;background:var(--soft);cursor:pointer}
button.main{background:var(--main);border-color:var(--main);color:var(--on);font-weight:600}
:focus-visible{outline:3px solid var(--main);outline-offset:2px}
.row{display:flex;flex-wrap:wrap;gap:.75rem}.row+form,form+form{margin-top:1rem}
.bad{color:var(--bad);font-weight:600}
@media(max-width:30rem){dl{grid-template-columns:1fr}dd{margin:0 0 .5rem}.row button,form>button{flex:1;width:100%}}
""".replace("\n", "")  # noqa: E501 - a style sheet
_HEADINGS: Final = {
    403: "Not for you",
    404: "Not found",
    409: "Too late",
    502: "Signing in has failed",
    503: "Not now",
}

_SESSION_LIFE: Final = 3600
_SESSION: Final = "junction-session"
_PURPOSE: Final = "sign-in session"
_FORM: Final = "page form"
_NOT_VALID: Final = "That key is not valid."

Cookie = tuple[bytes, bytes]


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


async def ask_for_key(
    send: Send, title: str, whose: str, issuer: str, why: str, status: int = 401
) -> None:
    """Show the form in which a key is shown; ``whose`` is HTML, ``issuer`` that of tokens."""
    told = f'<p class="bad" role="alert">{escape(why)}</p>' if why else ""
    token, label = "", "Key"
    if issuer:
        token = f", or such an access token of <code>{escape(issuer)}</code>"
        label = "Key or access token"
    body = (
        f"<h1>{escape(title)}</h1>{told}<p>To go on, show {whose} of this gateway{token}.</p>"
        f'<form method="post"><label for="key">{label}</label>'
        '<input type="password" id="key" name="key" autocomplete="off" spellcheck="false"'
        ' required autofocus><button class="main">Go on</button></form>'
    )
    await send_page(send, status if why else 200, body, is_html=True, title=title)


async def send_again(scope: Scope, send: Send, cookies: list[Cookie]) -> None:
    """Have the browser ask for the same page anew, by GET."""
    location = (b"location", b"?" + scope["query_string"])
    await send_body(send, 303, b"", [*PAGE_HEADERS, location, *cookies])


async def send_page(
    send: Send,
    status: int,
    body: str,
    *,
    is_html: bool = False,
    title: str = "",
    more: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a page; what is no HTML is shown as one paragraph under a heading."""
    heading = title or _HEADINGS.get(status, "Junction")
    inner = body if is_html else f"<h1>{heading}</h1><p>{escape(body)}</p>"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(heading)} – Junction</title><style>{_STYLE}</style></head>"
        f"<body><main>{inner}</main></body></html>"
    )
    await send_body(send, status, text.encode(), [*PAGE_HEADERS, *(more or [])])


async def send_body(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Send a whole response."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# -- who has shown a key


class SessionSigner(Protocol):
    """Signs the cookie of whoever has shown a key."""

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool: ...


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
        credentials: KeyRing | None,
        signer: SessionSigner,
        public_url: Callable[[], str],
        deny: Callable[[Denial], None] | None = None,
        issuer: str = "",
        refresh: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """``identify`` finds the owner; without ``credentials`` there is nobody else.

        ``issuer`` is that of access tokens, where these are accepted. ``deny`` records refusals.
        ``refresh`` reads keys and grants again, where keys may be made by another process.
        """
        self._identify = identify
        self._credentials = credentials
        self._signer = signer
        self._public_url = public_url
        self._deny = deny
        self._issuer = issuer
        self._refresh = refresh

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
        if said.until <= time.time():
            return None
        return principal if self._credentials.is_session_good(principal, said.life) else None

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
        if found is None and self._refresh is not None:
            found = await credentials.find_new(authorization, self._refresh)
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
