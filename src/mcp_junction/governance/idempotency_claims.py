"""IdempotencyClaims: lets one call with an idempotency key run, and answers the others from it.

The rules are ``resilience/idempotency.py``. A claim is a row of the store, owned by the audit
writer of the process that runs the call, whose heartbeat is its lease. Calls in one process wait
for each other in memory; for a claim of another process the row is polled. Without the store
nothing is claimed, and so nothing with a key is run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.audit.writers import find_dead
from mcp_junction.errors import StoreError, VaultError
from mcp_junction.protocol import encode
from mcp_junction.resilience.clock import Clock
from mcp_junction.resilience.idempotency import (
    ClaimAction,
    ClaimEnd,
    ClaimKey,
    ClaimState,
    judge_claim,
)
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.resilience import ClaimRecord, ClaimTable
from mcp_junction.store.retention import remove_regularly
from mcp_junction.tasks import wait_unless

log = logging.getLogger("mcp_junction.governance")

_FIRST_POLL: Final = 0.05
_LONGEST_POLL: Final = 1.0
_RETRY: Final = 1.0
_RETIRE_EVERY: Final = 3600.0
_TICKET: Final = "ticket"
"""Stands for the owner in the claim on a ticket; those of calls have a role before a colon."""
_MOST_UNSETTLED: Final = 10_000
_STATES: Final = {
    ClaimEnd.KEEP: ClaimState.DONE,
    ClaimEnd.MARK_EXECUTED: ClaimState.EXECUTED,
    ClaimEnd.MARK_UNKNOWN: ClaimState.UNKNOWN,
}


class KeptResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a claimed call, without the envelope of an era."""

    kind: str
    target: str
    payload: Raw
    is_enveloped: bool = False
    """Whether it has the stateless era's envelope after all, because that says more."""


_decode_kept = msgspec.json.Decoder(KeptResult).decode


class ClaimVerdict(msgspec.Struct, frozen=True):
    """What a call with a key is to do."""

    action: ClaimAction
    claim_id: str = ""
    """The claim that it got, if it is to run."""
    kept: KeptResult | None = None


_CONFLICT: Final = ClaimVerdict(ClaimAction.CONFLICT)
_UNKNOWN: Final = ClaimVerdict(ClaimAction.UNKNOWN)
_EXECUTED: Final = ClaimVerdict(ClaimAction.EXECUTED)


class _RunningClaim:
    """A claim that somebody in this process looks after; others wait for it."""

    __slots__ = ("arguments", "decided", "ended", "key", "verdict")

    def __init__(self, key: ClaimKey, arguments: str) -> None:
        self.key = key
        self.arguments = arguments
        self.decided = asyncio.Event()
        """Set once the store has said whose the claim is."""
        self.ended = asyncio.Event()
        self.verdict: ClaimVerdict | None = None
        """The answer to those that wait; None when they have to ask again."""


class _Settling(msgspec.Struct, frozen=True):
    """How a claim ends, until the store has it."""

    claim_id: str
    end: ClaimEnd
    kept: KeptResult | None = None
    until: float = 0.0


class IdempotencyClaims:
    """The claims of this process."""

    def __init__(
        self,
        table: ClaimTable,
        trail: AuditTrail,
        writer: str,
        clock: Clock,
        held_for: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``writer`` is this process's audit writer; parked calls come back within ``held_for``."""
        self._table = table
        self._trail = trail
        self._writer = writer
        self._clock = clock
        self._held_for = held_for
        self._now = now
        self._running: dict[ClaimKey, _RunningClaim] = {}
        self._by_id: dict[str, _RunningClaim] = {}
        self._unsettled: list[_Settling] = []
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many claims are looked after, or wait for the store."""
        return len(self._running) + len(self._unsettled)

    # -- claiming

    async def claim(
        self, key: ClaimKey, arguments: str, ending: asyncio.Event, *, may_run: bool = True
    ) -> ClaimVerdict | None:
        """Claim a key, or wait for the call that has it; None when ``ending`` came first.

        A call that may not run only looks: if there is nothing, its verdict is RUN without a claim.
        Raises StoreError.
        """
        while True:
            running = self._running.get(key)
            if running is None:
                return await self._ask_store(key, arguments, ending, may_run)
            is_same = running.arguments == arguments
            if not is_same and running.decided.is_set():
                return _CONFLICT
            waited = running.ended if is_same else running.decided
            if not await wait_unless(ending, waited.wait()):
                return None
            if is_same and running.verdict is not None:
                return running.verdict

    async def _ask_store(
        self, key: ClaimKey, arguments: str, ending: asyncio.Event, may_run: bool
    ) -> ClaimVerdict | None:
        """Claim a key in the store, or wait until the row says what became of it."""
        running = self._running[key] = _RunningClaim(key, arguments)
        verdict: ClaimVerdict | None = None
        try:
            verdict = await self._wait_for_row(key, arguments, ending, may_run)
        finally:
            if verdict is not None and verdict.claim_id:
                self._by_id[verdict.claim_id] = running
                running.decided.set()
            else:  # a verdict to run is one caller's alone; any other is everybody's
                is_final = verdict is not None and verdict.action is not ClaimAction.RUN
                self._end(running, verdict if is_final else None)
        return verdict

    async def _wait_for_row(
        self, key: ClaimKey, arguments: str, ending: asyncio.Event, may_run: bool
    ) -> ClaimVerdict | None:
        pause = _FIRST_POLL
        verdict = await self._make(key, arguments) if may_run else await self._look(key, arguments)
        while verdict.action is ClaimAction.WAIT:
            if not await wait_unless(ending, self._clock.sleep(pause)):
                return None
            pause = min(_LONGEST_POLL, pause * 2)
            verdict = await self._look(key, arguments)
            if verdict.action is ClaimAction.RUN and may_run:  # it was given up
                verdict = await self._make(key, arguments)
        return verdict

    async def _make(self, key: ClaimKey, arguments: str) -> ClaimVerdict:
        """Claim a key if nobody has it; else say what its claim means."""
        now = self._now()
        new = ClaimRecord(token_hex(16), *key, arguments, ClaimState.RUNNING, self._writer, now)
        try:
            found = await self._table.make(new)
        except BaseException:  # it may have been made all the same
            self.settle_soon(new.id, ClaimEnd.RELEASE)
            raise
        if found is None:
            return ClaimVerdict(ClaimAction.RUN, new.id)
        return await self._judge(found, arguments, now)

    async def _look(self, key: ClaimKey, arguments: str) -> ClaimVerdict:
        """Say what the claim of a key means; RUN when there is none."""
        return await self._judge(await self._table.find(key), arguments, self._now())

    async def _judge(self, found: ClaimRecord | None, arguments: str, now: float) -> ClaimVerdict:
        if found is None:
            return ClaimVerdict(ClaimAction.RUN)
        is_alive = await self._is_alive(found, now)
        action = judge_claim(found.claim, arguments, now, is_owner_alive=is_alive)
        if action is ClaimAction.UNKNOWN and found.state is ClaimState.RUNNING:
            await self._table.settle(found.id, ClaimState.UNKNOWN)
        if action is not ClaimAction.REPLAY:
            return ClaimVerdict(action)
        kept = self._open(found)
        return ClaimVerdict(action, kept=kept) if kept is not None else _EXECUTED

    async def _is_alive(self, found: ClaimRecord, now: float) -> bool:
        """Whether the process that owns a running claim may still end it."""
        if found.state is not ClaimState.RUNNING:
            return False
        if found.held_until is not None and now >= found.held_until:
            return False
        return found.owner == self._writer or found.owner in await self._living(now)

    async def _living(self, now: float) -> set[str]:
        """Return the audit writers that have a heartbeat."""
        writers = await self._trail.writers()
        dead = find_dead(writers, self._writer, now)
        open_ones = {one.writer for one in writers if one.closed_at is None}
        return (open_ones | {self._writer}) - set(dead)

    def _open(self, found: ClaimRecord) -> KeptResult | None:
        """Read a kept result; None when it cannot be read any more."""
        try:
            plain = self._table.open(found)
            return None if plain is None else _decode_kept(plain)
        except (VaultError, msgspec.MsgspecError) as error:
            log.error("the result of a call with an idempotency key cannot be read: %s", error)
            return None

    # -- settling

    async def settle(self, claim_id: str, end: ClaimEnd, kept: KeptResult | None = None) -> None:
        """Store how a claimed call ended; whoever waits for it goes on. Never fails.

        What the store does not take now is stored later.
        """
        settling = _Settling(claim_id, end, kept, self._now() + self._held_for)
        try:
            await self._store(settling)
        except StoreError as error:
            log.warning("the end of a call with an idempotency key is stored later: %s", error)
            self._store_later(settling)
        except BaseException:  # cancelled: whether it was stored is not known
            self._store_later(settling)
            raise
        finally:
            self._wake_waiting(settling)

    def settle_soon(self, claim_id: str, end: ClaimEnd) -> None:
        """Have the end of a claimed call stored soon, where nothing can be waited for."""
        settling = _Settling(claim_id, end)
        self._wake_waiting(settling)
        self._store_later(settling)

    async def take_over(self, claim_id: str) -> None:
        """Go on with a call whose client has come back: it may run longer than it could wait.

        Without the store it is held as long as before.
        """
        try:
            await self._table.take_over(claim_id, self._writer)
        except StoreError as error:
            log.warning("a call with an idempotency key goes on, which is not stored: %s", error)

    async def spend_ticket(self, ticket_id: str) -> str | None:
        """Spend the ticket of a call that goes on; return None if any process has before.

        It is kept like the claim of a call that has run. Raises StoreError.
        """
        key, now = ClaimKey(_TICKET, "", "", ticket_id), self._now()
        new = ClaimRecord(token_hex(16), *key, "", ClaimState.EXECUTED, self._writer, now)
        return new.id if await self._table.make(new) is None else None

    async def return_ticket(self, spent: str) -> None:
        """Make a ticket good again that ``spend_ticket`` has spent: nothing came of it."""
        await self.settle(spent, ClaimEnd.RELEASE)

    def give_up(self, claim_id: str) -> None:
        """Mark the claim of a call that nobody will come back for: it may have run."""
        self.settle_soon(claim_id, ClaimEnd.MARK_UNKNOWN)

    def _wake_waiting(self, settling: _Settling) -> None:
        """Let those go on that wait for a call of this process."""
        running = self._by_id.pop(settling.claim_id, None)
        if running is not None:
            self._end(running, _verdict_of(settling))

    def _end(self, running: _RunningClaim, verdict: ClaimVerdict | None) -> None:
        if self._running.get(running.key) is running:
            del self._running[running.key]
        running.verdict = verdict
        running.decided.set()
        running.ended.set()

    def _store_later(self, settling: _Settling) -> None:
        if len(self._unsettled) < _MOST_UNSETTLED:
            self._unsettled.append(settling)
            self._wake.set()
        else:  # it counts as unknown when this process has ended
            log.error("the end of a call with an idempotency key is not stored: the store is away")

    async def _store(self, settling: _Settling) -> None:
        claim_id, end = settling.claim_id, settling.end
        if end is ClaimEnd.RELEASE:
            await self._table.release(claim_id)
        elif end is ClaimEnd.HOLD:
            await self._table.hold(claim_id, settling.until)
        else:
            plain = None if settling.kept is None else encode.dumps(settling.kept)
            await self._table.settle(claim_id, _STATES[end], plain)

    # -- in the background

    async def run(self) -> None:
        """Store what could not be stored at once, in order. A supervised task."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsettled:
                try:
                    await self._store(self._unsettled[0])
                except StoreError:
                    await self._clock.sleep(_RETRY)
                else:
                    del self._unsettled[0]

    async def retire_hourly(self) -> None:
        """Remove claims that are no longer kept. A supervised task."""
        keys = "idempotency keys"
        await remove_regularly(keys, self.retire, self._clock, every=_RETIRE_EVERY)

    async def retire(self) -> int:
        """Remove claims that are no longer kept, and return how many. Raises StoreError."""
        now = self._now()
        return await self._table.retire(now, await self._living(now))


def _verdict_of(settling: _Settling) -> ClaimVerdict | None:
    """Return what those that waited for a call are to do; None: ask again."""
    if settling.end is ClaimEnd.KEEP and settling.kept is not None:
        return ClaimVerdict(ClaimAction.REPLAY, kept=settling.kept)
    if settling.end is ClaimEnd.MARK_EXECUTED:
        return _EXECUTED
    return _UNKNOWN if settling.end is ClaimEnd.MARK_UNKNOWN else None
