"""SignInPages: the pages under ``/oauth/`` on which people sign in to servers.

No key is needed to open them.

The link in an error holds no secret. Who opens it must be who it was made for: the owner on this
machine, or whoever shows the agent's key, or an administrator's, once. Then the page names agent,
server and scopes, and the browser is sent to the issuer with a cookie that the callback checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec

from mcp_junction.credentials.credentials import CALLBACK, CLIENT_DOCUMENT, START
from mcp_junction.credentials.kinds import StoredSource
from mcp_junction.credentials.logins import StartedLogin
from mcp_junction.credentials.sign_ins import SignIns
from mcp_junction.credentials.source import SHARED, agent_of, agent_subject
from mcp_junction.errors import JunctionError, NotFound, NotPermitted
from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.oauth.registration import client_metadata
from mcp_junction.oauth.sign_in import read_callback
from mcp_junction.policy.principal import Principal, Role

_SESSION_LIFE: Final = 3600
_STATE: Final = "junction-sign-in"
_SESSION: Final = "junction-session"
_PURPOSE: Final = "sign-in session"
_HEADERS: Final = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    ),
]
_STYLE: Final = (
    "body{font:16px/1.5 system-ui;max-width:34rem;margin:4rem auto;padding:0 1rem}"
    "input,button{font:inherit;padding:.4rem .8rem}code{background:#eee;padding:0 .2rem}"
)
_MAX_BODY: Final = 16_384


class SessionSigner(Protocol):
    """Signs the cookie of whoever has shown a key."""

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool: ...


class SignInPages:
    """The ASGI app of the pages."""

    def __init__(
        self,
        sign_ins: SignIns,
        identify: Callable[[dict[bytes, bytes], Scope], Principal | None],
        is_in_force: Callable[[Principal], bool],
        signer: SessionSigner,
        name: str,
    ) -> None:
        """``identify`` finds the principal of a request, by its key or as the owner."""
        self._sign_ins = sign_ins
        self._identify = identify
        self._is_in_force = is_in_force
        self._signer = signer
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        try:
            if path == CLIENT_DOCUMENT and method == "GET":
                await self._show_client(send)
            elif path == CALLBACK and method == "GET":
                await self._handle_callback(scope, send)
            elif path.startswith(START) and method in ("GET", "POST"):
                await self._start(scope, receive, send)
            else:
                await _page(send, 404, "There is nothing here.")
        except NotPermitted as error:
            await _page(send, 403, f"This is not for you: {error}.")
        except NotFound as error:
            await _page(send, 404, f"{error}.")
        except JunctionError as error:
            await _page(send, 502, f"Signing in has failed: {error}.")

    async def _show_client(self, send: Send) -> None:
        """Show the metadata by which issuers may know us."""
        credentials = self._sign_ins.credentials
        document = {
            "client_id": credentials.client_url,
            **client_metadata(self._name, [credentials.callback_url]),
        }
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"max-age=3600")]
        await _send(send, 200, msgspec.json.encode(document), headers)

    # -- the link

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        reference = unquote(scope["path"][len(START) :])
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        source, login = await self._find(reference, query.get("agent"))
        form: dict[str, str] = {}
        if scope["method"] == "POST":
            form = dict(parse_qsl((await _body(scope, receive)).decode("latin-1")))
        headers.pop(b"authorization", None)  # a browser has none
        owner = self._identify(headers, scope)
        cookies: list[tuple[bytes, bytes]] = []
        principal = owner or self._session(headers)
        if "key" in form:
            shown = {b"authorization": b"Bearer " + form["key"].strip().encode()}
            principal = self._identify(shown, scope)
            if principal is None:
                await self._ask_for_key(send, source, "That key is not valid.")
                return
            cookies.append(self._make_session(principal))
        if principal is None:
            await self._ask_for_key(send, source, "")
            return
        self._sign_ins.check_allowed(principal, source)
        if login is None:
            login = await self._sign_ins.begin(source, principal)
        if owner is not None or "go" in form:
            await self._send_to_issuer(send, login, cookies)
        else:
            await self._ask_to_go(send, source, login, cookies)

    async def _find(
        self, reference: str, agent: str | None
    ) -> tuple[StoredSource, StartedLogin | None]:
        """Find what a link is about: a sign-in that was begun, or a server. Raises NotFound."""
        logins = await self._sign_ins.credentials.logins()
        try:
            record = await logins.find(reference)
        except NotFound:
            subject = SHARED if agent is None else agent_subject(agent)
            return self._sign_ins.source_of(reference, subject), None
        return self._sign_ins.source_of(record.server_id, record.subject), logins.reopen(record)

    async def _ask_for_key(self, send: Send, source: StoredSource, why: str) -> None:
        agent = agent_of(source.subject)
        whose = f"the key of the agent <code>{escape(agent)}</code>" if agent else "an admin's key"
        body = (
            f"<h1>Sign in</h1><p>{escape(why)}</p><p>To go on, show {whose} of this gateway.</p>"
            '<form method="post"><input type="password" name="key" autocomplete="off" autofocus>'
            " <button>Go on</button></form>"
        )
        await _page(send, 401 if why else 200, body, is_html=True)

    async def _ask_to_go(
        self,
        send: Send,
        source: StoredSource,
        login: StartedLogin,
        cookies: list[tuple[bytes, bytes]],
    ) -> None:
        agent = agent_of(source.subject)
        whom = f"the agent <code>{escape(agent)}</code>" if agent else "everybody who calls it here"
        scopes = ", ".join(f"<code>{escape(one)}</code>" for one in login.scopes) or "its defaults"
        body = (
            f"<h1>Sign in to <code>{escape(source.definition.key)}</code></h1>"
            f"<p>You sign in at <code>{escape(login.host)}</code>, for {whom}: calls will be made"
            f" with the account that you use there.</p><p>It is asked for: {scopes}.</p>"
            '<form method="post"><input type="hidden" name="go" value="1">'
            "<button>Go on to sign in</button></form>"
        )
        await _page(send, 200, body, is_html=True, more=cookies)

    async def _send_to_issuer(
        self, send: Send, login: StartedLogin, cookies: list[tuple[bytes, bytes]]
    ) -> None:
        cookies.append(self._cookie(_STATE, login.state, 600))
        location = (b"location", login.authorization_url.encode("ascii"))
        await _send(send, 302, b"", [*_HEADERS, location, *cookies])

    # -- the answer

    async def _handle_callback(self, scope: Scope, send: Send) -> None:
        """Take the answer of an issuer, from the browser that was sent there."""
        query = scope["query_string"].decode("latin-1")
        state = read_callback(query).get("state", "")
        logins = await self._sign_ins.credentials.logins()
        record = await logins.find_by_state(state)
        if self._cookies(dict(scope["headers"])).get(self._cookie_name(_STATE)) != state:
            raise NotPermitted("this sign-in was begun in another browser")
        source = await self._sign_ins.finish(record, query, "browser")
        name = escape(source.definition.key)
        body = f"<h1>Signed in</h1><p><code>{name}</code> can be used now. Close this page.</p>"
        await _page(send, 200, body, is_html=True)

    # -- cookies

    @property
    def _is_secure(self) -> bool:
        return self._sign_ins.credentials.public_url.startswith("https://")

    def _cookie_name(self, name: str) -> str:
        return f"__Host-{name}" if self._is_secure else name

    def _cookie(self, name: str, value: str, life: int) -> tuple[bytes, bytes]:
        secure = "; Secure" if self._is_secure else ""
        text = f"{self._cookie_name(name)}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Lax"
        return b"set-cookie", (text + secure).encode("ascii")

    @staticmethod
    def _cookies(headers: dict[bytes, bytes]) -> dict[str, str]:
        pairs = headers.get(b"cookie", b"").decode("latin-1").split(";")
        return {name.strip(): value for name, _, value in (one.partition("=") for one in pairs)}

    def _make_session(self, principal: Principal) -> tuple[bytes, bytes]:
        until = int(time.time()) + _SESSION_LIFE
        given = msgspec.json.encode([principal.id, principal.role, principal.key, until])
        value = f"{given.hex()}.{self._signer.sign(given, _PURPOSE).hex()}"
        return self._cookie(_SESSION, value, _SESSION_LIFE)

    def _session(self, headers: dict[bytes, bytes]) -> Principal | None:
        """The principal that has shown its key in this browser, if that is still good."""
        value = self._cookies(headers).get(self._cookie_name(_SESSION), "")
        try:
            given, mac = (bytes.fromhex(part) for part in value.split("."))
            if not self._signer.verify(given, mac, _PURPOSE):
                return None
            name, role, key, until = msgspec.json.decode(given, type=tuple[str, Role, str, int])
        except (ValueError, msgspec.MsgspecError):
            return None
        principal = Principal(name, role, key)
        return principal if until > time.time() and self._is_in_force(principal) else None


async def _body(scope: Scope, receive: Receive) -> bytes:
    exchange: Any = scope.get("exchange")
    if exchange is not None:
        return (exchange.body or b"")[:_MAX_BODY]
    message = await receive()
    return bytes(message.get("body", b""))[:_MAX_BODY]


async def _page(
    send: Send,
    status: int,
    body: str,
    *,
    is_html: bool = False,
    more: list[tuple[bytes, bytes]] | None = None,
) -> None:
    inner = body if is_html else f"<p>{escape(body)}</p>"
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Junction</title>'
        f"<style>{_STYLE}</style>{inner}</html>"
    )
    await _send(send, status, text.encode(), [*_HEADERS, *(more or [])])


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
