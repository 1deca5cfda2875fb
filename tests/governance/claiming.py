"""Processes that claim idempotency keys on one store, for the tests of claims."""

import asyncio

from mcp_junction.governance.idempotency_claims import ClaimVerdict, IdempotencyClaims, KeptResult
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.resilience.idempotency import ClaimAction, ClaimEnd, ClaimKey

KEY = ClaimKey("agent:a", "s", "t", "k1")
BOUND = 20.0


def kept(text: bytes = b'{"content":[]}') -> KeptResult:
    from msgspec import Raw

    return KeptResult("result", "s:t", Raw(text))


class Claimant:
    """The claims of one process."""

    def __init__(self, store, writer: str, **more) -> None:
        self.claims = IdempotencyClaims(
            store.claims, store.audit, writer, SystemClock(), 600.0, **more
        )
        self.ending = asyncio.Event()

    async def claim(self, arguments: str = "x", key: ClaimKey = KEY, **more) -> ClaimVerdict | None:
        claiming = self.claims.claim(key, arguments, self.ending, **more)
        return await asyncio.wait_for(claiming, BOUND)

    async def begin(self, arguments: str = "x", key: ClaimKey = KEY) -> str:
        verdict = await self.claim(arguments, key)
        assert verdict is not None
        assert verdict.action is ClaimAction.RUN
        assert verdict.claim_id
        return verdict.claim_id

    async def keep(self, claim_id: str, text: bytes = b'{"content":[]}') -> None:
        await self.claims.settle(claim_id, ClaimEnd.KEEP, kept(text))
