"""ApprovalPages: the pages under ``/approvals/`` on which people approve or deny calls.

The link in an answer holds no secret: an approver shows a key, once. The owner's own place on this
machine is not enough here, because an agent may run on it, too. Who may decide about which call is
the policy's rule, as for REST and the commands; that an agent is sent here gives it nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Final
from urllib.parse import unquote

from mcp_junction.errors import AlreadyDecided, NotFound, NotPermitted, StoreError
from mcp_junction.governance.approvals import PAGES, Approvals, show_hidden
from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.listener.http.pages import (
    Cookie,
    PageSessions,
    ask_for_key,
    read_form,
    send_page,
)
from mcp_junction.policy.approvals import MAX_NOTE, explain_approver_refusal
from mcp_junction.policy.principal import Principal, Right, explain_refusal, has_right
from mcp_junction.store.approvals import PENDING, ApprovalRecord

_TITLE: Final = "Approve a call"
_WHOSE: Final = "the key of somebody who may approve calls (an admin's or an orchestrator's)"
_COVERS: Final = (
    "What the server asks its client during the call, and what that answers, is not covered."
)
_NOT_KEPT: Final = "They were too long to be kept."


class ApprovalPages:
    """The ASGI app of the pages."""

    def __init__(
        self,
        approvals: Approvals,
        sessions: PageSessions,
        name_server: Callable[[str], str],
    ) -> None:
        """``name_server`` returns the name of a server with an id."""
        self._approvals = approvals
        self._sessions = sessions
        self._name_server = name_server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "POST"):
            await send_page(send, 404, "There is nothing here.")
            return
        try:
            await self._serve(scope, receive, send)
        except NotPermitted as error:
            await send_page(send, 403, f"This is not for you: {error}.")
        except NotFound:
            await send_page(send, 404, "There is no such request for approval.")
        except AlreadyDecided as error:
            await send_page(send, 409, f"{error}.")
        except StoreError:
            await send_page(send, 503, "The store cannot be reached; try again later.")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        approval_id = unquote(scope["path"][len(PAGES) :])
        form = await read_form(scope, receive)
        principal, cookies = self._sessions.find_principal(scope), list[Cookie]()
        if "key" in form:
            accepted = self._sessions.accept_key(form["key"], scope)
            if accepted is None:
                await ask_for_key(send, _TITLE, _WHOSE, "That key is not valid.")
                return
            principal, cookie = accepted
            cookies.append(cookie)
        if principal is None:
            await ask_for_key(send, _TITLE, _WHOSE, "")
            return
        if not has_right(principal, Right.CHANGE_POLICY):
            raise NotPermitted(explain_refusal(principal, Right.CHANGE_POLICY))
        record = await self._approvals.table.find(approval_id)
        refusal = explain_approver_refusal(principal, record.agent_id, record.asked_by)
        if refusal is not None:
            raise NotPermitted(refusal)
        if "do" in form:
            await self._act(send, principal, record, form)
        else:
            await self._show(send, principal, record, record.preview, cookies)

    async def _act(
        self, send: Send, principal: Principal, record: ApprovalRecord, form: dict[str, str]
    ) -> None:
        """Do what a form of ours asks for."""
        if not self._sessions.is_own_form(principal, record.id, form.get("form", "")):
            raise NotPermitted("this was not sent by the page that was shown to you; open it again")
        done = form["do"]
        if done == "reveal":
            record, arguments = await self._approvals.reveal(record.id, principal)
            shown = show_hidden(arguments.decode()) if arguments else _NOT_KEPT
            await self._show(send, principal, record, shown, [])
        elif done in ("approve", "deny"):
            note = form.get("note", "").strip()[:MAX_NOTE] or None
            await self._approvals.decide(record.id, done == "approve", principal, note)
            word, then = ("Approved", "The same call passes once now.")
            if done == "deny":
                word, then = "Denied", "The same call is refused until the request expires."
            await send_page(
                send, 200, f"<h1>{word}</h1><p>{then} Close this page.</p>", is_html=True
            )
        else:
            raise NotFound("there is no such thing to do")

    async def _show(
        self,
        send: Send,
        principal: Principal,
        record: ApprovalRecord,
        arguments: str,
        cookies: list[Cookie],
    ) -> None:
        """Show a request, and what can be done about it."""
        state = record.state_at(time.time())
        until = datetime.fromtimestamp(record.expires_at, UTC).isoformat(" ", "seconds")
        who = f"<code>{escape(record.agent_id)}</code>"
        if record.asked_by != record.agent_id:
            who += f", by <code>{escape(record.asked_by)}</code>"
        tool = f"{self._name_server(record.server_id)}.{record.tool_name}"
        body = (
            f"<h1>{_TITLE}</h1><p>The agent {who} wants to call <code>{escape(tool)}</code>,"
            f" which is risky: {escape(record.risk)}.</p><pre>{escape(arguments)}</pre>"
            f"<p>{_COVERS} It can be decided about until {escape(until)}.</p>"
        )
        if state is PENDING:
            form = self._sessions.sign_form(principal, record.id)
            body += (
                f'<form method="post"><input type="hidden" name="form" value="{form}">'
                f'<p><input name="note" maxlength="{MAX_NOTE}" placeholder="Why (it is told)"></p>'
                '<button name="do" value="approve">Approve</button>'
                ' <button name="do" value="deny">Deny</button>'
                ' <button name="do" value="reveal">Show all values</button></form>'
            )
        else:
            body += f"<p>Nobody can decide about it any more: it is {escape(state.value)}.</p>"
        await send_page(send, 200, body, is_html=True, more=cookies)
