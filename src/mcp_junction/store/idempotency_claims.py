"""ClaimTable: stores claims on idempotency keys, and the sealed results of calls that were claimed.

The rules are ``resilience/idempotency.py``. Of two racing calls, whichever process they are in, one
gets the claim: its key is unique.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

import msgspec

from mcp_junction.errors import AlreadyExists
from mcp_junction.resilience.idempotency import KEPT_FOR, Claim, ClaimKey, ClaimState
from mcp_junction.store.database import Compute, Database, Query, Script, insert, placeholders
from mcp_junction.store.servers import Sealer
from mcp_junction.store.signed import SignedRecord, SignedTable, Signer
from mcp_junction.store.table import Table, transaction


class ClaimRecord(SignedRecord, frozen=True):
    """A claim as it is stored."""

    id: str
    agent_id: str
    server_id: str
    tool_name: str
    key: str
    arguments: str
    state: ClaimState
    owner: str
    made_at: float
    held_until: float | None = None
    """Until when a call that waits for its client may come back."""
    result: bytes | None = None
    """The sealed result."""

    @property
    def claim(self) -> Claim:
        return Claim(self.claim_key, self.arguments, self.state, self.owner, self.made_at)

    @property
    def claim_key(self) -> ClaimKey:
        return ClaimKey(self.agent_id, self.server_id, self.tool_name, self.key)


_TABLE: Final = Table("idempotency_claims", ClaimRecord)
_ID: Final = ("id",)
_BY_KEY: Final = "WHERE agent_id = ? AND server_id = ? AND tool_name = ? AND key = ?"
_INSERT: Final = insert(_TABLE.name, _TABLE.columns)
_CLAIM: Final = (
    f"{_INSERT} ON CONFLICT (agent_id, server_id, tool_name, key) DO NOTHING RETURNING id"
)
_RELEASE: Final = Query("DELETE FROM idempotency_claims WHERE id = ?")
_SETTLED: Final = (ClaimState.DONE, ClaimState.EXECUTED)


class ClaimTable(SignedTable[ClaimRecord]):
    """All claims that are kept."""

    protected = ("result", "mac")

    def __init__(self, database: Database, sealer: Sealer, signer: Signer) -> None:
        super().__init__(database, signer, _TABLE)
        self._sealer = sealer

    async def find(self, key: ClaimKey) -> ClaimRecord | None:
        """Read the claim on a key."""
        found = await self.read_all(_BY_KEY, *key)
        return found[0] if found else None

    async def make(self, new: ClaimRecord) -> ClaimRecord | None:
        """Claim a key; return None when that was done, else the claim that there is already.

        A claim that is no longer kept is replaced.
        """
        for _ in range(3):
            try:
                return await self._make(new)
            except AlreadyExists:  # another process has replaced an old claim at the same time
                continue
        return await self.find(new.claim_key)

    @transaction()
    def _make(self, new: ClaimRecord) -> Script[ClaimRecord | None]:
        values = self._table.values(self.sign(new))
        if (yield Query(_CLAIM, values)):
            return None
        found = yield from self.read_one(_BY_KEY, *new.claim_key)
        if found is not None and found.claim.is_kept(new.made_at):
            return found
        yield Query(f"DELETE FROM idempotency_claims {_BY_KEY}", new.claim_key)
        yield Query(_INSERT, values)
        return None

    @transaction()
    def settle(self, claim_id: str, state: ClaimState, result: bytes | None = None) -> Script[None]:
        """Store how a claimed call ended, with its result, which is sealed here.

        What is known to have run stays so; one that counted as unknown may turn out to have.
        """
        found = yield from self.read_one("WHERE id = ?", claim_id)
        if found is None or found.state in _SETTLED:
            return
        ((query,),) = yield Compute(partial(self._seal, found, state, result))
        yield query

    def _seal(self, found: ClaimRecord, state: ClaimState, result: bytes | None) -> Query:
        sealed = None if result is None else self._sealer.seal(result, _identity(found.id))
        settled = msgspec.structs.replace(found, state=state, held_until=None, result=sealed)
        return self.put(settled, _ID)

    @transaction()
    def hold(self, claim_id: str, until: float) -> Script[None]:
        """Keep a claim for a call that waits for its client."""
        found = yield from self.read_one("WHERE id = ?", claim_id)
        if found is not None and found.state is ClaimState.RUNNING:
            yield self.put(msgspec.structs.replace(found, held_until=until), _ID)

    @transaction()
    def release(self, claim_id: str) -> Script[None]:
        """Give a claim up: nothing was sent, and the next call may run."""
        yield Query(_RELEASE.sql, (claim_id,))

    def open(self, record: ClaimRecord) -> bytes | None:
        """Decrypt the result of a claim; None when it has none. Raises VaultError."""
        if record.result is None:
            return None
        return self._sealer.open(record.result, _identity(record.id))

    def _reseal(self, record: ClaimRecord) -> ClaimRecord:
        result = self.open(record)
        if result is None:
            return record
        sealed = self._sealer.seal(result, _identity(record.id))
        return msgspec.structs.replace(record, result=sealed)

    @transaction()
    def retire(self, now: float, living: Collection[str]) -> Script[int]:
        """Remove claims that are no longer kept; ``living`` are the owners that still run."""
        owners = sorted(living)
        rows = yield Query(
            "DELETE FROM idempotency_claims WHERE made_at < ? AND"
            f" (state <> ? OR held_until < ? OR owner NOT IN ({placeholders(owners)}))"
            " RETURNING id",
            (now - KEPT_FOR, ClaimState.RUNNING.value, now, *owners),
        )
        return len(rows)


def _identity(claim_id: str) -> str:
    return f"idempotency_claims/{claim_id}"
