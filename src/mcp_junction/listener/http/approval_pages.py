"""ApprovalPages: the pages under ``/approvals/`` on which people approve or deny calls.

The link in an answer holds no secret: an approver shows a key or an access token, once. To be the
owner on this machine is not enough here, because an agent may run on it, too. Who may decide about
which call is the policy's rule, as for REST and the commands; that an agent is sent here gives it
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Final
from urllib.parse import unquote

import msgspec

from mcp_junction.errors import AlreadyDecided, NotFound, NotPermitted, StoreError
from mcp_junction.governance.approvals import PAGES, Approvals, show_hidden
from mcp_junction.listener.http.host import Receive, Scope, Send
from mcp_junction.listener.http.pages import PageSessions, read_form, send_page
from mcp_junction.policy.approvals import MAX_NOTE, explain_approver_refusal
from mcp_junction.policy.principal import Principal, Right, explain_refusal, has_right
from mcp_junction.store.grants import PENDING, ApprovalRecord

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
        except NotFound:
            await send_page(send, 404, "There is no such request for approval.")
        except AlreadyDecided as error:
            await send_page(send, 409, f"{error}.".capitalize())
        except StoreError:
            await send_page(send, 503, "The store cannot be reached; try again later.")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        sessions = self._sessions
        form = await read_form(scope, receive)
        if "key" in form:
            await sessions.accept(scope, send, form["key"], _TITLE, _WHOSE)
            return
        principal = sessions.find_principal(scope)
        if principal is None:
            await sessions.ask(send, _TITLE, _WHOSE)
            return
        try:
            record = await self._find(principal, unquote(scope["path"][len(PAGES) :]))
            if "do" in form:
                await self._act(send, principal, record, form)
            else:
                await self._show(send, principal, record, record.preview)
        except NotPermitted as error:
            await sessions.refuse(scope, send, principal, str(error), _TITLE, _WHOSE)

    async def _find(self, principal: Principal, approval_id: str) -> ApprovalRecord:
        """Find a request that a principal may decide about. Raises NotPermitted, NotFound."""
        if not has_right(principal, Right.CHANGE_POLICY):
            raise NotPermitted(explain_refusal(principal, Right.CHANGE_POLICY))
        record = await self._approvals.table.get(approval_id)
        refusal = explain_approver_refusal(principal, record.agent_id, record.asked_by)
        if refusal is not None:
            raise NotPermitted(refusal)
        return record

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
            await self._show(send, principal, record, shown, is_revealed=True)
        elif done in ("approve", "deny"):
            note = form.get("note", "").strip()[:MAX_NOTE] or None
            await self._approvals.decide(record.id, done == "approve", principal, note)
            word, then = ("Approved", "The same call passes once now.")
            if done == "deny":
                word, then = "Denied", "The same call is refused until the request expires."
            tool = escape(self._name_tool(record))
            body = f"<h1>{word}</h1><p><code>{tool}</code>: {then} You can close this page.</p>"
            await send_page(send, 200, body, is_html=True, title=word)
        else:
            raise NotFound("there is no such thing to do")

    async def _show(
        self,
        send: Send,
        principal: Principal,
        record: ApprovalRecord,
        arguments: str,
        is_revealed: bool = False,
    ) -> None:
        """Show a request, and what can be done about it."""
        now = time.time()
        state = record.state_at(now)
        who = f"<code>{escape(record.agent_id)}</code>"
        if record.asked_by != record.agent_id:
            who += f", by <code>{escape(record.asked_by)}</code>"
        body = (
            f"<h1>{_TITLE}</h1><dl><dt>Agent</dt><dd>{who}</dd>"
            f"<dt>Tool</dt><dd><code>{escape(self._name_tool(record))}</code></dd>"
            f"<dt>Risk</dt><dd>{escape(record.risk)}</dd>"
            f"<dt>Until</dt><dd>{_show_end(record, now)}</dd></dl>"
            f"<h2>Arguments</h2><pre>{escape(_indent(arguments))}</pre><p>{_COVERS}</p>"
        )
        if state is PENDING:
            body += _write_forms(self._sessions.sign_form(principal, record.id), is_revealed)
        else:
            body += (
                f"<p><strong>Nobody can decide about it any more: it is {escape(state.value)}."
                "</strong></p>"
            )
        await send_page(send, 200, body, is_html=True, title=_TITLE)

    def _name_tool(self, record: ApprovalRecord) -> str:
        return f"{self._name_server(record.server_id)}.{record.tool_name}"


def _indent(arguments: str) -> str:
    """Put each argument on a line of its own; what is cut, or no JSON any more, stays as it is."""
    try:
        return msgspec.json.format(arguments)
    except msgspec.MsgspecError:
        return arguments


def _show_end(record: ApprovalRecord, now: float) -> str:
    """Say when a request expires, and in how many minutes."""
    end = datetime.fromtimestamp(record.expires_at, UTC)
    left = int((record.expires_at - now) // 60)
    words = f"in {left} min" if left > 0 else "in less than a minute"
    shown = f"{end:%Y-%m-%d %H:%M:%S} UTC"
    return f'<time datetime="{end:%Y-%m-%dT%H:%M:%SZ}">{shown}</time>' + (
        f", {words}" if record.expires_at > now else ""
    )


def _write_forms(form: str, is_revealed: bool) -> str:
    """Write the forms of a request: approve, deny, reveal. Enter in the note submits none."""
    signed = f'<input type="hidden" name="form" value="{form}">'
    written = (
        f'<form method="post">{signed}<label for="note">Why (it is told to the agent)</label>'
        f'<textarea id="note" name="note" rows="2" maxlength="{MAX_NOTE}"></textarea>'
        '<div class="row"><button class="main" name="do" value="approve">Approve</button>'
        '<button name="do" value="deny">Deny</button></div></form>'
    )
    if is_revealed:
        return written
    button = '<button name="do" value="reveal">Show all values</button> (this is put on record)'
    return f'<form method="post">{signed}{button}</form>{written}'
