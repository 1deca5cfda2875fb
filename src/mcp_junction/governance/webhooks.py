"""Webhook: posts escalations and approvals to an address of the operator's, signed.

It reads the bus like any other reader, so that no call ever waits for it, and posts what this
process has published. What is not accepted is tried again with longer and longer pauses; what is
given up is kept for the operator to see. Deliveries are in the store: those of a process that has
ended another one goes on with, so that each is made at least once; receivers know a repeated one by
its id. Signatures are ``policy/webhook_signing.py``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from mcp_junction.errors import AddressRefused, NotFound, StoreError, StoreUnavailable, UsageError
from mcp_junction.governance.approvals import DECIDED, REQUESTED
from mcp_junction.governance.failures import ESCALATED
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.policy.webhook_signing import MIN_SECRET, sign_webhook
from mcp_junction.redaction.connections import mask_url
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.events import (
    DEAD,
    WAITING,
    DeliveryRecord,
    DeliveryState,
    DeliveryTable,
)
from mcp_junction.store.records import EventRecord
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus
from mcp_junction.upstream.http.connection import parse_target
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch

log = logging.getLogger("mcp_junction.governance")

TYPES: Final = (ESCALATED, REQUESTED, DECIDED)
PAUSES: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds before each further try; then the delivery is given up."""
MAX_WAITING: Final = 1_000
"""Deliveries that may be under way; what comes beyond waits in the store."""
AT_ONCE: Final = 8
TIMEOUT: Final = 10.0
LOOK: Final = 30.0
"""Seconds between looks for deliveries that no process claims."""
_LEASE: Final = 60.0
"""Seconds that a delivery is claimed beyond its next try."""
_TAKEN: Final = 100
_LOOK_BACK: Final = 1_000
"""Events before the newest delivery that are looked through at the start for lost ones."""
_KEPT_DELIVERED: Final = 24 * 3600.0
_KEPT_DEAD: Final = 30 * 24 * 3600.0
_HOUR: Final = 3600.0
_DIGITS: Final = 18
"""Of the longest number of an event that the store can have."""


class Webhook:
    """One address, and what is delivered to it."""

    def __init__(
        self,
        url: str,
        secret: str,
        bus: Bus,
        table: DeliveryTable,
        clock: Clock,
        *,
        allow_private: bool = False,
        dialer: Dialer | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises UsageError for an address or a secret that cannot be used."""
        if len(secret) < MIN_SECRET:
            raise UsageError(f"webhook_secret: use {MIN_SECRET} characters or more")
        try:
            parse_target(url)
        except ValueError as error:
            raise UsageError(f"webhook_url: {error}") from None
        KNOWN.learn_value(secret)
        KNOWN.learn_url(url)
        self.url = mask_url(url)
        """As it may be shown."""
        self.table = table
        self._url = url
        self._secret = secret
        self._bus = bus
        self._clock = clock
        self._dialer = dialer or Dialer(Permissions(allow_private=allow_private))
        self._now = now
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks = TaskScope("the webhook")
        self._under_way: dict[int, DeliveryRecord] = {}
        self._beginning = 0
        """Deliveries that are being stored."""
        self._began = now()
        self.delivered = 0
        self.failed = 0
        """Deliveries of this process that were given up."""

    @property
    def waiting(self) -> int:
        """How many deliveries of this process are under way."""
        return len(self._under_way)

    # -- what there is to deliver

    async def run(self) -> None:
        """Deliver what is published from now on, and what others left. A supervised task."""
        self._tasks = TaskScope("the webhook")
        self._began = self._now()
        try:
            self._tasks.supervise("webhook deliveries", self._take_over, is_vital=False)
            await self._follow()
        finally:
            await self._tasks.close()
            await self._release()

    async def _follow(self) -> None:
        after: int | None = None
        while True:
            try:
                if after is None:
                    last = await self.table.last_number()
                    after = None if last is None else max(last - _LOOK_BACK, 0)
                async for event in self._bus.subscribe(after, TYPES):
                    after = event.seq
                    self.offer(event)
            except StoreUnavailable:
                await self._clock.sleep(1.0)

    def offer(self, event: EventRecord) -> None:
        """Deliver an event, if that is for this process to do. Never waits, never fails."""
        is_ours = event.origin == self._bus.origin or event.at < self._began
        if event.type in TYPES and is_ours:  # others deliver their own, while they are there
            self._tasks.spawn(self._begin(event))

    async def _begin(self, event: EventRecord) -> None:
        """Store a delivery and make it, unless the event has one."""
        has_room = len(self._under_way) + self._beginning < MAX_WAITING
        claimed = self._now() + _LEASE if has_room else 0.0
        told = {"type": event.type, "timestamp": event.at, "data": event.data}
        body = msgspec.json.encode(told).decode()
        record = DeliveryRecord(
            event.seq, event.type, event.subject, body, event.at, claimed_until=claimed
        )
        self._beginning += has_room
        try:
            is_new = await self.table.add(record)
        except StoreError:  # it is made as long as this process is there
            is_new = True
        finally:
            self._beginning -= has_room
        if has_room and is_new:
            self._under_way[event.seq] = record
            await self._deliver(record)

    async def _take_over(self) -> None:
        """Go on with deliveries that no process claims."""
        retire_at = self._now()
        while True:
            now = self._now()
            with suppress(StoreError):
                if now >= retire_at:
                    await self.table.retire(now - _KEPT_DELIVERED, now - _KEPT_DEAD)
                    retire_at = now + _HOUR
                most = min(_TAKEN, MAX_WAITING - len(self._under_way))
                for record in await self.table.claim(now, now + _LEASE, max(most, 0)):
                    if record.seq not in self._under_way:
                        self._under_way[record.seq] = record
                        self._tasks.spawn(self._deliver(record))
            await self._clock.sleep(LOOK)

    async def retry(self, delivery_id: str) -> None:
        """Deliver once more what was given up, with all its tries. Raises NotFound, StoreError."""
        number = delivery_id.removeprefix("evt_")
        is_number = delivery_id.startswith("evt_") and number.isascii() and number.isdigit()
        seq = int(number) if is_number and len(number) <= _DIGITS else 0
        record = await self.table.revive(seq, self._now() + _LEASE)
        if record is None:
            raise NotFound("no delivery with this id was given up")
        self._under_way[record.seq] = record
        self._tasks.spawn(self._deliver(record))

    async def _release(self) -> None:
        """Leave what is under way to other processes, or to the next one here."""
        left, self._under_way = list(self._under_way.values()), {}
        with suppress(StoreError):
            for record in left:
                await self.table.update(replace(record, claimed_until=0.0))

    # -- one delivery

    async def _deliver(self, record: DeliveryRecord) -> None:
        """Try to deliver until it is accepted, or given up."""
        pauses, pause = (0.0, *PAUSES), 0.0
        while True:
            await self._clock.sleep(pause * random.uniform(0.8, 1.2))
            async with self._slots:
                why, is_final = await self._try(record)
            attempts = record.attempts + 1
            if why is None:
                body, state = "", DeliveryState.DELIVERED
            else:
                is_over = is_final or attempts >= len(pauses)
                body, state = record.body, DEAD if is_over else WAITING
            pause = pauses[attempts] if state is WAITING else 0.0
            until = self._now() + pause * 1.2 + _LEASE
            record = self._under_way[record.seq] = replace(
                record, body=body, state=state, attempts=attempts, why=why, claimed_until=until
            )
            with suppress(StoreError):  # then it may be delivered once more, after a restart
                await self.table.update(record)
            if state is not WAITING:
                break
        self._under_way.pop(record.seq, None)
        self.delivered += why is None
        if why is not None:
            self.failed += 1
            log.error("the webhook was not told of %s %s: %s", record.type, record.id, why)

    async def _try(self, record: DeliveryRecord) -> tuple[str | None, bool]:
        """Post a delivery once; say why it was not accepted, and whether that is final."""
        try:
            status = await self._post(record.id, record.body.encode())
        except AddressRefused as error:
            return KNOWN.redact(str(error)), True
        except OSError as error:
            words = f"{type(error).__name__}: {error}" if str(error) else "no answer in time"
            return KNOWN.redact(words), False
        if 200 <= status < 300:
            return None, True
        return f"it answered {status}", status == 410

    async def _post(self, message_id: str, body: bytes) -> int:
        """Post a body once, signed at this moment; return the status."""
        headers = sign_webhook(self._secret, message_id, self._now(), body)
        headers["content-type"] = "application/json"
        sent = fetch(
            self._url, self._dialer, method="POST", headers=headers, body=body, timeout=TIMEOUT
        )
        return (await sent).status
