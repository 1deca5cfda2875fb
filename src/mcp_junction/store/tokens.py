"""TokenTable: stores the tokens of grants, and spends those that are good for one call.

When a call needs a token is decided in ``policy/tokens.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mcp_junction.policy.tokens import Token
from mcp_junction.store.database import Database, Query, Script, placeholders
from mcp_junction.store.signed import SignedTable, Signer
from mcp_junction.store.table import Table

KEY: Final = ("id",)
REPLAYED: Final = 24 * 3600.0
"""Seconds that a used token is known for: as long as the record of an idempotency key is kept."""
_RELEVANT: Final = "revoked_at IS NULL AND (expires_at > ? OR used_at > ?)"


class TokenRecord(Token, frozen=True, gc=False, kw_only=True):
    """A token as it is stored."""

    mac: bytes | None = None


class TokenTable(SignedTable[TokenRecord]):
    """All tokens. Changed by ``PolicyTables``."""

    def __init__(self, database: Database, signer: Signer) -> None:
        super().__init__(database, signer, Table("tokens", TokenRecord))

    async def relevant(self, now: float) -> list[TokenRecord]:
        """Read the tokens that a call may still carry or need: live ones, and used ones."""
        return await self.read_all(f"WHERE {_RELEVANT}", now, now - REPLAYED)

    async def of_agents(self, agent_ids: Sequence[str], now: float) -> list[TokenRecord]:
        """Read the tokens that calls of these agents may still carry or need."""
        return await self.read_all(
            f"WHERE {_RELEVANT} AND grant_id IN"
            f" (SELECT id FROM grants WHERE agent_id IN ({placeholders(agent_ids)}))",
            now,
            now - REPLAYED,
            *agent_ids,
        )

    # -- parts of a transaction

    def spend(self, token_id: str, now: float) -> Script[bool]:
        """Use a token that is good for one call; whether this call has it.

        Of calls that race for it, in this process or in others, exactly one does: the others wait
        for its transaction. A token goes with its grant, so a revoked grant has none to spend.
        """
        token = yield from self.read_one("WHERE id = ?", token_id)
        if token is None or token.used_at is not None or not token.is_live(now):
            return False
        used = self.sign(msgspec.structs.replace(token, used_at=now))
        rows = yield Query(
            "UPDATE tokens SET used_at = ?, mac = ? WHERE id = ? AND used_at IS NULL"
            " AND revoked_at IS NULL RETURNING id",
            (now, used.mac, token_id),
        )
        return bool(rows)

    def issue(self, token: Token, grant_id: str, now: float) -> Script[TokenRecord]:
        """Store a new token of a grant; those before it that were not used are good no more."""
        yield from self.revoke_of(grant_id, now)
        fields = {name: getattr(token, name) for name in Token.__struct_fields__}
        record = TokenRecord(**{**fields, "grant_id": grant_id})
        yield self.put(record, KEY)
        return record

    def revoke_of(self, grant_id: str, now: float) -> Script[int]:
        """Revoke the unused tokens of a grant; return how many."""
        wanted = "WHERE grant_id = ? AND revoked_at IS NULL AND used_at IS NULL"
        tokens = self.genuine((yield self._table.select(wanted, (grant_id,))))
        for token in tokens:
            yield self.put(msgspec.structs.replace(token, revoked_at=now), KEY)
        return len(tokens)

    def remove_of(self, grant_id: str) -> Query:
        """Make the statement that removes all tokens of a grant."""
        return Query("DELETE FROM tokens WHERE grant_id = ?", (grant_id,))
