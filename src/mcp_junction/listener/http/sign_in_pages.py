"""SignInPages: the pages under ``/oauth/`` on which people sign in to servers.

No key is needed to open them.

The link in an error holds no secret. Who opens it must be who it was made for: the owner on this
machine, or whoever shows the agent's key, or an administrator's, once. Then the page names agent,
server and scopes, and the browser is sent to the issuer with a cookie that the callback checks. The
owner is sent there at once, but not for an agent, and not by a link on a site: else somebody could
have the owner's account given to an agent, or a sign-in made, by nothing but a link.
"""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from mcp_junction.credentials.credentials import CALLBACK, CLIENT_DOCUMENT, START
from mcp_junction.credentials.kinds import StoredSource
from mcp_junction.credentials.sign_ins import SignIns, StartedLogin
from mcp_junction.credentials.subjects import SHARED, agent_of, agent_subject
from mcp_junction.errors import JunctionError, NotFound, NotPermitted
from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.listener.http.pages import (
    PAGE_HEADERS,
    PageSessions,
    read_form,
    send_body,
    send_page,
)
from mcp_junction.oauth.registration import client_metadata
from mcp_junction.oauth.sign_in import read_callback

_STATE: Final = "junction-sign-in"
_TITLE: Final = "Sign in"


class SignInPages:
    """The ASGI app of the pages."""

    def __init__(
        self, sign_ins: SignIns, sessions: PageSessions, name: str, *, is_link_secret: bool = False
    ) -> None:
        """``is_link_secret``: only the owner is given links, so that opening one is enough."""
        self._sign_ins = sign_ins
        self._sessions = sessions
        self._name = name
        self._is_link_secret = is_link_secret

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
            await send_page(send, 502, f"{error}.")

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
        server_id, subject, login = await self._find(reference, query.get("agent"))
        form = await read_form(scope, receive)
        owner, whose = self._sessions.find_owner(scope), _describe_signer(subject)
        if "key" in form:
            await self._sessions.accept(scope, send, form["key"], _TITLE, whose)
            return
        principal = owner or self._sessions.find_principal(scope)
        if principal is None:
            await self._sessions.ask(send, _TITLE, whose)
            return
        try:
            self._sign_ins.check_allowed(principal, subject)
        except NotPermitted as error:
            await self._sessions.refuse(scope, send, principal, str(error), _TITLE, whose)
            return
        source = self._sign_ins.source_of(server_id, subject)
        if login is None:
            login = await self._sign_ins.begin(source, principal)
        if "go" in form or (owner is not None and self._may_go_at_once(scope, source)):
            await self._send_to_issuer(send, login)
        else:
            await self._ask_to_go(send, source, login)

    def _may_go_at_once(self, scope: Scope, source: StoredSource) -> bool:
        """Whether the owner is asked nothing: it is the owner's own sign-in, and own doing."""
        if self._is_link_secret:
            return True
        came_from = dict(scope["headers"]).get(b"sec-fetch-site", b"none")
        return source.subject == SHARED and came_from in (b"none", b"same-origin")

    async def _find(
        self, reference: str, agent: str | None
    ) -> tuple[str, str, StartedLogin | None]:
        """Find which server and subject a link is about, and the sign-in, if it was begun.

        Anybody may ask: nothing is made, and nothing is said of whether there is such a server.
        """
        logins = await self._sign_ins.logins()
        try:
            record = await logins.find(reference)
        except NotFound:
            return reference, SHARED if agent is None else agent_subject(agent), None
        return record.server_id, record.subject, logins.reopen(record)

    async def _ask_to_go(self, send: Send, source: StoredSource, login: StartedLogin) -> None:
        agent = agent_of(source.subject)
        whom = f"the agent <code>{escape(agent)}</code>" if agent else "everybody who calls it here"
        scopes = ", ".join(f"<code>{escape(one)}</code>" for one in login.scopes) or "its defaults"
        server = escape(source.definition.key)
        body = (
            f"<h1>Sign in to <code>{server}</code></h1>"
            f"<p>You sign in at <code>{escape(login.host)}</code>, for {whom}: calls will be made"
            f" with the account that you use there.</p><p>It is asked for: {scopes}.</p>"
            '<form method="post"><input type="hidden" name="go" value="1">'
            '<button class="main">Go on to sign in</button></form>'
        )
        await send_page(send, 200, body, is_html=True, title=_TITLE)

    async def _send_to_issuer(self, send: Send, login: StartedLogin) -> None:
        cookie = self._sessions.make_cookie(_STATE, login.state, 600)
        location = (b"location", login.authorization_url.encode("ascii"))
        await send_body(send, 302, b"", [*PAGE_HEADERS, location, cookie])

    # -- the answer

    async def _handle_callback(self, scope: Scope, send: Send) -> None:
        """Take the answer of an issuer, from the browser that was sent there."""
        query = scope["query_string"].decode("latin-1")
        state = read_callback(query).get("state", "")
        logins = await self._sign_ins.logins()
        record = await logins.find_by_state(state)
        if self._sessions.read_cookie(scope, _STATE) != state:
            raise NotPermitted("this sign-in was begun in another browser")
        source = await self._sign_ins.finish(record, query, "browser")
        name = escape(source.definition.key)
        then = "can be used now. You can close this page."
        body = f"<h1>Signed in</h1><p><code>{name}</code> {then}</p>"
        await send_page(send, 200, body, is_html=True, title="Signed in")


def _describe_signer(subject: str) -> str:
    """Say, as HTML, whose key somebody must show to sign in for a subject."""
    agent = agent_of(subject)
    return f"the key of the agent <code>{escape(agent)}</code>" if agent else "an admin's key"
