"""Route ``GET /api/v1/mcp/audit``: the rows of the audit, newest first.

The numbers of rows count what everybody does. An agent, which reads its own calls, is shown ids and
cursors that do not tell them.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    caller,
    find_server_id,
    link_next,
    mcp_error_responses,
    parse_time,
    read_cursor,
    write_cursor,
)
from mcp_junction.api.models import format_time
from mcp_junction.api.rights import Right, needs
from mcp_junction.eras.tickets import Ticket, TicketOwner
from mcp_junction.errors import CursorError, RequestStateError
from mcp_junction.policy.principal import Principal, has_right
from mcp_junction.store.audit_records import AuditQuery, AuditRow
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import QueryParameter, Router, get

Agent = Annotated[
    str | None,
    QueryParameter(max_length=255, description="Only what was done in the name of this agent."),
]
OfTool = Annotated[
    str | None,
    QueryParameter(
        max_length=1_000, description="Only this tool's: its server's own name, or the namespaced."
    ),
]
Decision = Annotated[
    Literal["ALLOW", "DENY", "unknown"] | None,
    QueryParameter(description="Only what was decided so; `unknown` is a name that is not there."),
]
Correlation = Annotated[
    str | None, QueryParameter(max_length=1_000, description="Only calls with this correlation id.")
]
Since = Annotated[
    str | None, QueryParameter(max_length=40, description="Only rows of this time or later.")
]
Until = Annotated[
    str | None, QueryParameter(max_length=40, description="Only rows of before this time.")
]


class AuditEntry(msgspec.Struct):
    """A row of the audit: who did what, in whose name, what was decided and how it ended."""

    id: Annotated[str, Meta(examples=["5f0c8e1d2a3b4c5d:42"])]
    at: str | None
    kind: Annotated[str, Meta(description="call, intent, outcome, request …", examples=["call"])]
    principal: Annotated[str, Meta(examples=["build-bot"])]
    role: str
    agent_id: Annotated[str, Meta(description="In whose name.", examples=["build-bot"])]
    action: Annotated[str, Meta(examples=["tools/call"])]
    server_id: Annotated[str | None, Meta(description="Name; the id of one that is gone.")]
    tool_name: Annotated[str | None, Meta(description="The tool that was asked for.")]
    target: Annotated[str | None, Meta(description="What was called, which may be a fallback.")]
    decision: Annotated[str | None, Meta(examples=["ALLOW"])]
    rule: Annotated[str | None, Meta(examples=["grant:7d1f"])]
    cached: bool
    outcome: Annotated[str | None, Meta(examples=["ok"])]
    correlation_id: str | None
    ticket_id: str | None
    task_id: str | None
    attempts: int
    delivery: str | None
    latency_ms: float | None
    params_sha256: str | None
    result_summary: str | None
    detail: Any
    closes: Annotated[str | None, Meta(description="The id of the intent that it ends.")]


_CURSOR: Final = "cursor"
_COPIED: Final = frozenset(AuditEntry.__struct_fields__) & frozenset(AuditRow.__struct_fields__) - {
    "at", "detail", "server_id", "agent_id", "closes"
}  # fmt: skip


@get(
    opt=needs(Right.READ_AUDIT, or_only=Right.READ_OWN_CALLS),
    responses=mcp_error_responses(),
    summary="Read the audit",
    description="Newest first; agents read their own calls. A page may have fewer rows than the"
    " limit, or none, although there are more: the header `Link` leads to the next page, as long"
    " as there is one.",
)
async def list_audit_entries(
    request: AnyRequest,
    context: Context,
    agent_id: Agent = None,
    server_id: OfServer = None,
    tool_name: OfTool = None,
    decision: Decision = None,
    correlation_id: Correlation = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[AuditEntry]]:
    principal = caller(request)
    names = context.server_names
    reads_all = has_right(principal, Right.READ_AUDIT)
    seal, unseal = (_as_it_is, _as_it_is) if reads_all else _sealed_for(context, principal)
    beginning = parse_time("since", since)
    if not reads_all:
        own = await context.store.policy.agents.find_time_made(principal.id)
        beginning = max(beginning or 0.0, own)
    asked = AuditQuery(
        own_calls_of=None if reads_all else principal.id,
        agent=agent_id,
        server_id=find_server_id(server_id, names),
        tool=tool_name,
        decision=decision,
        correlation_id=correlation_id,
        since=beginning,
        until=parse_time("until", until),
        limit=limit,
        before=None if cursor is None else read_cursor(unseal(cursor), tuple[float, str, int]),
    )
    found = await context.store.audit.find(asked)
    following = None if found.before is None else seal(write_cursor(found.before))
    shown = [audit_entry(row, names, reads_all=reads_all) for row in found.rows]
    return Response(shown, headers=link_next(request, following))


def audit_entry(row: AuditRow, names: dict[str, str], *, reads_all: bool) -> AuditEntry:
    """Make the model of a row; ``names`` has the names of servers by id."""
    copied = {name: getattr(row, name) for name in _COPIED}
    name_row = _as_it_is if reads_all else _hide_number
    return AuditEntry(
        id=name_row(f"{row.writer}:{row.seq}"),
        at=format_time(row.at),
        principal=row.actor,
        agent_id=row.acting_agent,
        server_id=None if row.server_id is None else names.get(row.server_id, row.server_id),
        result_summary=row.summary,
        detail=None if row.detail is None else msgspec.json.decode(row.detail),
        closes=None if row.closes is None else name_row(row.closes),
        **copied,
    )


def _hide_number(reference: str) -> str:
    """Make an id of a row from which its number cannot be found: its writer is told to no agent."""
    writer, _, number = reference.rpartition(":")
    return blake2b(number.encode(), key=writer.encode()[:64], digest_size=12).hexdigest()


def _as_it_is(text: str) -> str:
    return text


def _sealed_for(
    context: Context, principal: Principal
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return what seals cursors for a principal, and what opens them, which raises CursorError."""
    whose = TicketOwner(principal.id, principal.role.value, "", "", "", _CURSOR)
    sealing = context.junction.parked_calls.seal

    def unseal(cursor: str) -> str:
        try:
            return sealing.open(cursor, whose).inner or ""
        except RequestStateError:
            raise CursorError("is not a cursor of this list") from None

    return lambda cursor: sealing.close(Ticket(whose, inner=cursor)), unseal


ROUTES = Router("/api/v1/mcp/audit", route_handlers=[list_audit_entries], tags=["audit"])
