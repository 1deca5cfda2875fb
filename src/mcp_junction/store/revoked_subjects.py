"""RevokedSubjects: stores from when on access tokens of a subject must have been issued.

Access tokens of the door's issuer are not stored; what is revoked of them is all that were issued
to a subject before a time. They are verified in ``identity/tokens.py``.
"""

from __future__ import annotations

from typing import Final

from mcp_junction.store.database import Database, Script, bump
from mcp_junction.store.signed import SignedRecord, SignedTable, Signer
from mcp_junction.store.table import Table, transaction

TOPIC: Final = "door"
KEY: Final = ("issuer", "subject")


class RevokedSubject(SignedRecord, frozen=True):
    """A subject whose tokens were revoked."""

    issuer: str
    subject: str
    not_before: float
    """Tokens that were issued before are not accepted."""
    revoked_by: str


class RevokedSubjects(SignedTable[RevokedSubject]):
    """All subjects whose tokens were revoked."""

    def __init__(self, database: Database, signer: Signer) -> None:
        super().__init__(database, signer, Table("revoked_subjects", RevokedSubject, key=KEY))

    async def of_issuer(self, issuer: str) -> dict[str, float]:
        """Read since when tokens of each subject must have been issued."""
        found = await self.read_all("WHERE issuer = ?", issuer)
        return {one.subject: one.not_before for one in found}

    @transaction()
    def revoke(self, revoked: RevokedSubject) -> Script[None]:
        """Revoke the tokens of a subject; a second time those that were issued since."""
        yield bump(TOPIC)
        yield self.put(revoked, KEY)
