"""ApprovalTable: stores requests for approval, and spends each approval once.

What an approval is bound to is in ``policy/approvals.py``. Of all calls that race for one, in any
process, the database lets a single one take it. The arguments are sealed; the preview is redacted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import NotFound
from mcp_junction.policy.approvals import ApprovalState
from mcp_junction.store.database import Query, Script
from mcp_junction.store.protected import SignedRecord, SignedTable
from mcp_junction.store.table import Table, transaction

PENDING: Final = ApprovalState.PENDING
APPROVED: Final = ApprovalState.APPROVED


class ApprovalRecord(SignedRecord, frozen=True):
    """A request for approval as it is stored."""

    id: str
    binding: str
    agent_id: str
    asked_by: str
    """The principal that made the call."""
    asked_role: str
    server_id: str
    tool_name: str
    grant_id: str
    risk: str
    """Why the call is risky."""
    preview: str
    """The redacted arguments."""
    arguments: bytes
    """The sealed arguments."""
    correlation_id: str | None
    requested_at: float
    expires_at: float
    state: ApprovalState = PENDING
    decided_at: float | None = None
    decided_by: str | None = None
    note: str | None = None
    closed_at: float | None = None

    def state_at(self, now: float) -> ApprovalState:
        """Return what it is at a time: what nobody used in time has expired."""
        is_over = self.state in (PENDING, APPROVED) and now >= self.expires_at
        return ApprovalState.EXPIRED if is_over else self.state


class ApprovalQuery(NamedTuple):
    """Which requests to read, the newest first."""

    now: float
    is_open: bool = False
    """Only those that wait for somebody."""
    before: tuple[float, str] | None = None
    limit: int = 100


_OPEN: Final = "WHERE binding = ? AND closed_at IS NULL"


class ApprovalTable(SignedTable[ApprovalRecord]):
    """All requests for approval that are kept."""

    _table = Table("approvals", ApprovalRecord)
    protected = ("arguments", "mac")

    async def find(self, approval_id: str) -> ApprovalRecord:
        """Read one. Raises NotFound."""
        found = await self.read_first("WHERE id = ?", approval_id)
        if found is None:
            raise NotFound(f"there is no request for approval {approval_id!r}")
        return found

    async def read(self, asked: ApprovalQuery) -> list[ApprovalRecord]:
        """Read requests, the newest first."""
        where, args = ["1 = 1"], list[object]()
        if asked.is_open:
            where.append("state = ? AND expires_at > ?")
            args += [PENDING.value, asked.now]
        if asked.before is not None:
            where.append("(requested_at < ? OR (requested_at = ? AND id < ?))")
            args += [asked.before[0], asked.before[0], asked.before[1]]
        rest = f"WHERE {' AND '.join(where)} ORDER BY requested_at DESC, id DESC LIMIT ?"
        return await self.read_all(rest, *args, asked.limit)

    @transaction()
    def add(self, new: ApprovalRecord) -> Script[tuple[ApprovalRecord, bool]]:
        """Store a request, unless the same call has one; return that, and whether it is new."""
        now = new.requested_at
        add = self._table.add(
            self.sign(new), " ON CONFLICT (binding) WHERE closed_at IS NULL DO NOTHING RETURNING id"
        )
        found = yield from self.read_one(_OPEN, new.binding)
        if found is not None and now < found.expires_at:
            return found, False
        if found is not None:
            over = msgspec.structs.replace(found, state=found.state_at(now), closed_at=now)
            yield from self._replace(over, found.state)
        if (yield add):
            return new, True
        found = yield from self.read_one(_OPEN, new.binding)
        if found is not None:  # another process was first
            return found, False
        yield Query(f"DELETE FROM approvals {_OPEN}", (new.binding,))  # it has no valid MAC
        yield add
        return new, True

    async def find_open(self, binding: str) -> ApprovalRecord | None:
        """Read the request of a call that is neither used nor replaced."""
        return await self.read_first(_OPEN, binding)

    async def count_pending(self, agent_id: str, now: float) -> int:
        """Count what waits for somebody to decide about an agent's calls."""
        sql = "SELECT count(*) FROM approvals WHERE agent_id = ? AND state = ? AND expires_at > ?"
        return await self._read_number(sql, agent_id, PENDING.value, now) or 0

    @transaction()
    def decide(
        self, approval_id: str, state: ApprovalState, at: float, by: str, note: str | None
    ) -> Script[ApprovalRecord | None]:
        """Store a decision; None if it was decided about before, or has expired. Raises NotFound.

        Of two that decide at once, one does.
        """
        found = yield from self.read_one("WHERE id = ?", approval_id)
        if found is None:
            raise NotFound(f"there is no request for approval {approval_id!r}")
        if found.state_at(at) is not PENDING:
            return None
        new = msgspec.structs.replace(found, state=state, decided_at=at, decided_by=by, note=note)
        return new if (yield from self._replace(new, PENDING)) else None

    def spend(self, binding: str, now: float) -> Script[bool]:
        """Use up the approval of a call, inside a transaction; whether there was one.

        Safe against races: the update matches a row that is approved and open, and only one of two
        transactions finds it so.
        """
        found = yield from self.read_one(_OPEN, binding)
        if found is None or found.state_at(now) is not APPROVED:
            return False
        used = msgspec.structs.replace(found, state=ApprovalState.USED, closed_at=now)
        return (yield from self._replace(used, APPROVED))

    def reveal(self, record: ApprovalRecord) -> bytes:
        """Decrypt the arguments of a request. Raises VaultError."""
        return self._open(record.arguments, record.id)

    @transaction()
    def retire(self, before: float) -> Script[int]:
        """Remove requests that ended before a time; return how many."""
        rows = yield Query("DELETE FROM approvals WHERE expires_at < ? RETURNING id", (before,))
        return len(rows)

    def _replace(self, new: ApprovalRecord, expected: ApprovalState) -> Script[bool]:
        """Store a record in place of the one with its id, if that is as expected."""
        signed = self.sign(new)
        # A rotation may have sealed the arguments anew since they were read.
        names = "state", "decided_at", "decided_by", "note", "closed_at", "arguments", "mac"
        clause, args = self._table.assignments({name: getattr(signed, name) for name in names})
        rows = yield Query(
            f"UPDATE approvals SET {clause}"
            " WHERE id = ? AND state = ? AND closed_at IS NULL RETURNING id",
            (*args, signed.id, expected.value),
        )
        return bool(rows)
