"""SignInPages: the pages under ``/oauth/`` on which people sign in to servers.

No key is needed to open them.

The link in an error holds no secret. Who opens it must be who it was made for: the owner on this
machine, or whoever shows the agent's key, or an administrator's, once. Then the page names agent,
server and scopes, and the browser is sent to the issuer with a cookie that the callback checks.
"""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from mcp_junction.credentials.credentials import CALLBACK, CLIENT_DOCUMENT, START
from mcp_junction.credentials.kinds import StoredSource
from mcp_junction.credentials.logins import StartedLogin
from mcp_junction.credentials.sign_ins import SignIns
from mcp_junction.credentials.source import SHARED, agent_of, agent_subject
from mcp_junction.errors import JunctionError, NotFound, NotPermitted
from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.listener.http.pages import (
    PAGE_HEADERS,
    Cookie,
    PageSessions,
    ask_for_key,
    read_form,
    send_body,
    send_page,
)
from mcp_junction.oauth.registration import client_metadata
from mcp_junction.oauth.sign_in import read_callback

_STATE: Final = "junction-sign-in"


class SignInPages:
    """The ASGI app of the pages."""

    def __init__(self, sign_ins: SignIns, sessions: PageSessions, name: str) -> None:
        self._sign_ins = sign_ins
        self._sessions = sessions
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
                await send_page(send, 404, "There is nothing here.")
        except NotPermitted as error:
            await send_page(send, 403, f"This is not for you: {error}.")
        except NotFound as error:
            await send_page(send, 404, f"{error}.")
        except JunctionError as error:
            await send_page(send, 502, f"Signing in has failed: {error}.")

    async def _show_client(self, send: Send) -> None:
        """Show the metadata by which issuers may know us."""
        credentials = self._sign_ins.credentials
        document = {
            "client_id": credentials.client_url,
            **client_metadata(self._name, [credentials.callback_url]),
        }
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"max-age=3600")]
        await send_body(send, 200, msgspec.json.encode(document), headers)

    # -- the link

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        reference = unquote(scope["path"][len(START) :])
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        source, login = await self._find(reference, query.get("agent"))
        form = await read_form(scope, receive)
        owner = self._sessions.find_owner(scope)
        cookies: list[Cookie] = []
        principal = owner or self._sessions.find_principal(scope)
        if "key" in form:
            accepted = self._sessions.accept_key(form["key"], scope)
            if accepted is None:
                await self._ask_for_key(send, source, "That key is not valid.")
                return
            principal, cookie = accepted
            cookies.append(cookie)
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
        await ask_for_key(send, "Sign in", whose, why)

    async def _ask_to_go(
        self,
        send: Send,
        source: StoredSource,
        login: StartedLogin,
        cookies: list[Cookie],
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
        await send_page(send, 200, body, is_html=True, more=cookies)

    async def _send_to_issuer(self, send: Send, login: StartedLogin, cookies: list[Cookie]) -> None:
        cookies.append(self._sessions.make_cookie(_STATE, login.state, 600))
        location = (b"location", login.authorization_url.encode("ascii"))
        await send_body(send, 302, b"", [*PAGE_HEADERS, location, *cookies])

    # -- the answer

    async def _handle_callback(self, scope: Scope, send: Send) -> None:
        """Take the answer of an issuer, from the browser that was sent there."""
        query = scope["query_string"].decode("latin-1")
        state = read_callback(query).get("state", "")
        logins = await self._sign_ins.credentials.logins()
        record = await logins.find_by_state(state)
        if self._sessions.read_cookie(scope, _STATE) != state:
            raise NotPermitted("this sign-in was begun in another browser")
        source = await self._sign_ins.finish(record, query, "browser")
        name = escape(source.definition.key)
        body = f"<h1>Signed in</h1><p><code>{name}</code> can be used now. Close this page.</p>"
        await send_page(send, 200, body, is_html=True)
