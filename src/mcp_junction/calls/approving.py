"""Asks for a person's approval of a call, where its grant wants one.

The answer to a call that nobody has approved says how to get that; the same call again finds the
same request. What a server asks in the middle of a call is not part of what was approved.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcp_junction.calls.call import Call
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.catalog.pins import define
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import StoreError
from mcp_junction.governance.approvals import Approvals, UnapprovedCall
from mcp_junction.policy.approvals import ApprovalState, ApprovedCall
from mcp_junction.protocol.versions import APPROVAL_NEEDED, SERVER_UNAVAILABLE
from mcp_junction.store.approvals import APPROVED, PENDING, ApprovalRecord
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

_NO_STORE: Final = "the store cannot be reached, so that nobody can be asked; try again later"
_TOO_MANY: Final = "too many calls of this agent wait for approval; have some of them decided first"
_HOW: Final = (
    "have it approved (mcp-junction approvals approve {0}, or POST"
    " /api/v1/mcp/approvals/{0}/approve) and make the same call again"
)
_HOW_ON_PAGE: Final = (
    "have it approved at {1} (or by mcp-junction approvals approve {0}, or POST"
    " /api/v1/mcp/approvals/{0}/approve) and make the same call again"
)


def describe_approved(call: Call) -> ApprovedCall:
    """Describe what an approval of a call is bound to. Raises ArgumentsError."""
    route, decision = call.route, call.decision
    assert route is not None, "resolve comes first"
    assert decision is not None, "authorize comes first"
    members = route.item.members if route.item is not None else {}
    return ApprovedCall(
        decision.agent_id,
        route.upstream.definition.id,
        _hash_connection(route.upstream.definition),
        route.pair.name,
        define(members).hash,
        call.read_arguments().hash,
    )


def _hash_connection(definition: ServerDefinition) -> str:
    """Hash how, and in whose name, a server is connected to: a change is another connection."""
    parts = (
        definition.transport,
        definition.command,
        definition.args,
        sorted(definition.env.items()),
        definition.cwd,
        definition.url,
        sorted(definition.headers.items()),
        definition.auth,
        (definition.tls_ca, definition.tls_cert, definition.tls_key),
    )
    return sha256(msgspec.json.encode(parts)).hexdigest()


async def require_approval(
    approvals: Approvals, call: Call, approved: ApprovedCall
) -> Outcome | None:
    """Return the answer to a call that nobody has approved; None for one that may go on."""
    decision, facts = call.decision, call.facts
    assert decision is not None
    assert facts is not None
    waiting = UnapprovedCall(
        approved,
        call.grant or decision.grants[0],
        call.caller.principal,
        facts.target.risk.reason,
        bytes(call.params.get("arguments", b"{}")),
        call.correlation_id,
    )
    try:
        record = await approvals.request(waiting)
        if record is not None:
            record = await approvals.wait_for_decision(record, call.ending)
    except StoreError:
        return outcomes.failed(SERVER_UNAVAILABLE, _NO_STORE, Delivery.NOT_SENT)
    if call.ended_by is not None:
        return call.ended_by
    if record is None:
        return await deny(call, _TOO_MANY)
    if record.state is APPROVED:
        return None
    if record.state is ApprovalState.DENIED:
        return await deny(call, f"a person has denied this call{_quote(record.note)}")
    return _ask(call, record, approvals.page_of(record.id))


def _ask(call: Call, record: ApprovalRecord, url: str) -> Outcome:
    how = _HOW.format(record.id) if not url else _HOW_ON_PAGE.format(record.id, url)
    call.denial = "it waits for approval" if record.state is PENDING else "its approval has ended"
    until = datetime.fromtimestamp(record.expires_at, UTC).isoformat(timespec="seconds")
    data: dict[str, Any] = {"approval_id": record.id, "expires_at": until, "how": how}
    if url:
        data["url"] = url
    message = f"a person has to approve this call, request {record.id}: {how}"
    return outcomes.failed(APPROVAL_NEEDED, message, Delivery.NOT_SENT, **data)


def _quote(note: str | None) -> str:
    return f": {note}" if note else ""
