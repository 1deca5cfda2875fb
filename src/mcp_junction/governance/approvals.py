"""Approvals: calls that wait for a person, and the decisions about them.

A request is made by the first try of a call and found again by the same call. It is shown with
redacted arguments; to see them as they are is an act of its own in the audit. Decisions are acts,
too, and are published, here and through the store to other processes. An approval is used up in
``admission.py``. Which call it is for: ``policy/approvals.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final

import msgspec

from mcp_junction.audit.log import AuditLog
from mcp_junction.errors import AlreadyDecided, NotFound, NotPermitted, StoreError
from mcp_junction.policy.approvals import ApprovalState, ApprovedCall, explain_approver_refusal
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.principal import Principal
from mcp_junction.redaction.payloads import clean, redact_value
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.grants import APPROVED, PENDING, ApprovalRecord, ApprovalTable
from mcp_junction.telemetry.bus import Bus

PAGES: Final = "/approvals/"
"""The path of the pages on which people decide."""
REQUESTED: Final = "approval.requested"
DECIDED: Final = "approval.decided"
MAX_PENDING: Final = 100
"""Requests of one agent that may wait for somebody."""
_PREVIEW: Final = 4_000
_TEXT: Final = 1_000
"""Characters of a preview, and of one text in it."""
_KEPT: Final = 256 * 1024
"""Bytes of arguments that are kept to be revealed."""
_POLL: Final = 0.2
"""Seconds between looks at the store for decisions of other processes."""
_SLOW_POLL: Final = 1.0


class UnapprovedCall(msgspec.Struct, frozen=True):
    """A call that a person is asked about."""

    call: ApprovedCall
    grant: Grant
    asked_by: Principal
    risk: str
    arguments: bytes
    correlation_id: str


class Approvals:
    """Asks people about calls, and keeps what they say."""

    def __init__(
        self,
        table: ApprovalTable,
        audit: AuditLog,
        bus: Bus,
        clock: Clock,
        wait: float = 0.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``wait`` is how many seconds a call waits for the decision about it."""
        self.table = table
        self._audit = audit
        self._bus = bus
        self._clock = clock
        self._wait = wait
        self._now = now
        self._decided = asyncio.Event()
        """Set and replaced at each decision in this process."""
        self.public_url = ""
        """The address under which people reach us; the service sets it."""

    # -- calls

    async def request(self, waiting: UnapprovedCall) -> ApprovalRecord | None:
        """Find the request of a call, or make one; None when too many of its agent wait.

        Raises StoreError.
        """
        call, grant, now = waiting.call, waiting.grant, self._now()
        known = await self.table.find_open(call.bind(grant))
        if known is not None and now < known.expires_at:
            return known
        approval_id, until = token_hex(8), now + grant.token_ttl
        kept = waiting.arguments if len(waiting.arguments) <= _KEPT else b""
        record = ApprovalRecord(
            approval_id,
            call.bind(grant),
            call.agent_id,
            waiting.asked_by.id,
            waiting.asked_by.role.value,
            call.server_id,
            call.tool_name,
            grant.id,
            waiting.risk,
            _make_preview(waiting.arguments),
            self.table.seal(kept, approval_id),
            waiting.correlation_id,
            now,
            until if grant.expires_at is None else min(until, grant.expires_at),
        )
        found, is_new = await self.table.add(record, MAX_PENDING)
        if found is not None and is_new:
            self._publish(REQUESTED, found, risk=found.risk, preview=found.preview)
        return found

    async def wait_for_decision(
        self, record: ApprovalRecord, ending: asyncio.Event
    ) -> ApprovalRecord:
        """Wait a while until somebody decides; return the request as it is then.

        Raises StoreError.
        """
        until = self._clock.now() + self._wait
        while self._is_pending(record) and not ending.is_set():
            left = until - self._clock.now()
            if left <= 0:
                break
            record = await self._look_again(record, min(left, _POLL))
        return record

    async def wait_until_decided(self, approval_id: str) -> None:
        """Wait until somebody has decided about a request, or it has ended."""
        with suppress(NotFound):
            record = await self.table.get(approval_id)
            while self._is_pending(record):
                with suppress(StoreError):
                    record = await self._look_again(record, _SLOW_POLL)

    async def _look_again(self, record: ApprovalRecord, within: float) -> ApprovalRecord:
        """Read a request again, after the next decision here or so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._decided.wait()
        return await self.table.get(record.id)

    def page_of(self, approval_id: str) -> str:
        """Return the address of the page on which a request is decided; empty without one."""
        return f"{self.public_url}{PAGES}{approval_id}" if self.public_url else ""

    def _is_pending(self, record: ApprovalRecord) -> bool:
        return record.state_at(self._now()) is PENDING

    # -- people

    async def decide(
        self, approval_id: str, approve: bool, by: Principal, note: str | None = None
    ) -> ApprovalRecord:
        """Approve or deny a call.

        Raises NotFound, NotPermitted, AlreadyDecided and StoreError.
        """
        found = await self.table.get(approval_id)
        refusal = explain_approver_refusal(by, found.agent_id, found.asked_by)
        if refusal is not None:
            raise NotPermitted(refusal)
        state = APPROVED if approve else ApprovalState.DENIED
        async with self._act(by, "approval.approve" if approve else "approval.deny", found, note):
            decided = await self.table.decide(approval_id, state, self._now(), by.id, note)
            if decided is None:
                now_is = (await self.table.get(approval_id)).state_at(self._now())
                raise AlreadyDecided(f"nobody can decide about it any more: it is {now_is.value}")
        self._decided.set()
        self._decided = asyncio.Event()
        self._publish(DECIDED, decided, state=state.value, by=by.id, note=note)
        return decided

    async def reveal(self, approval_id: str, by: Principal) -> tuple[ApprovalRecord, bytes]:
        """Return a request with its arguments as they are. Raises NotFound and StoreError."""
        found = await self.table.get(approval_id)
        async with self._act(by, "approval.reveal", found):
            return found, self.table.reveal(found)

    def _act(self, by: Principal, action: str, of: ApprovalRecord, note: str | None = None) -> Any:
        told = {"note": note} if note else {}
        detail = {"approval_id": of.id, "tool_name": of.tool_name, **told}
        return self._audit.act(
            by.id,
            by.role.value,
            action,
            target=of.agent_id,
            server_id=of.server_id,
            detail=detail,
        )

    def _publish(self, kind: str, record: ApprovalRecord, **more: Any) -> None:
        data = {
            "id": record.id,
            "agent_id": record.agent_id,
            "asked_by": record.asked_by,
            "server_id": record.server_id,
            "tool_name": record.tool_name,
            "correlation_id": record.correlation_id,
            "expires_at": record.expires_at,
            **more,
        }
        self._bus.publish(kind, data, record.server_id)


async def retire_approvals_daily(
    days: int, table: ApprovalTable, clock: Clock, now: Callable[[], float] = time.time
) -> None:
    """Remove requests that ended ``days`` days ago, once a day."""
    while True:
        await clock.sleep(_DAY)
        try:
            await table.retire(now() - days * _DAY)
        except StoreError:
            continue  # the next day is early enough


_DAY: Final = 24 * 3600.0


def _make_preview(arguments: bytes) -> str:
    """Show arguments without secrets; where something is left out, say how much."""
    shown = redact_value(_cut_texts(msgspec.json.decode(arguments or b"{}")))
    text = show_hidden(clean(msgspec.json.encode(shown).decode()))
    left_out = len(text) - _PREVIEW
    return text if left_out <= 0 else f"{text[:_PREVIEW]}… ({left_out} more characters)"


def show_hidden(text: str) -> str:
    """Write what cannot be seen, or turns the direction of a text, as an escape."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )


def _cut_texts(value: Any) -> Any:
    """Cut long texts, and say so: an end that nobody sees must not be approved unseen."""
    if isinstance(value, dict):
        return {name: _cut_texts(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cut_texts(inner) for inner in value]
    if not isinstance(value, str) or len(value) <= _TEXT:
        return value
    known = KNOWN.redact(value)  # before it is cut: the rest of a secret would not be known
    return f"{known[:_TEXT]}… ({len(value) - _TEXT} more characters)"
