"""Webhook: posts escalations and approvals to an address of the operator's, signed.

It reads the bus like any other reader, so that no call ever waits for it, and posts what this
process has published. What is not accepted is tried again with longer and longer pauses; what is
given up is kept for the operator to see. Deliveries under way are lost with the process: the
records that they tell of are not. Signatures are ``policy/webhook_signing.py``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from mcp_junction.errors import AddressRefused, StoreUnavailable, UsageError
from mcp_junction.governance.approvals import DECIDED, REQUESTED
from mcp_junction.governance.escalations import ESCALATED
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.policy.webhook_signing import MIN_SECRET, sign_webhook
from mcp_junction.redaction.connections import mask_url
from mcp_junction.redaction.known import KNOWN
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.records import EventRecord
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus
from mcp_junction.upstream.http.connection import parse_target
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import FetchedResponse, fetch

log = logging.getLogger("mcp_junction.governance")

TYPES: Final = (ESCALATED, REQUESTED, DECIDED)
PAUSES: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds before each further try; then the delivery is given up."""
MAX_WAITING: Final = 1_000
"""Deliveries that may be under way; the oldest that waits is given up for one more."""
AT_ONCE: Final = 8
TIMEOUT: Final = 10.0
KEPT_DEAD: Final = 200

Post = Callable[[bytes, dict[str, str]], Awaitable[FetchedResponse]]


class DeadDelivery(msgspec.Struct, frozen=True):
    """A delivery that was given up."""

    id: str
    type: str
    subject: str | None
    at: float
    """When the event was published."""
    attempts: int
    why: str


class Webhook:
    """One address, and what is delivered to it."""

    def __init__(
        self,
        url: str,
        secret: str,
        bus: Bus,
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
        self._url = url
        self._secret = secret
        self._bus = bus
        self._clock = clock
        self._dialer = dialer or Dialer(Permissions(allow_private=allow_private))
        self._now = now
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks = TaskScope("the webhook")
        self._waiting: set[str] = set()
        self.delivered = 0
        self.failed = 0
        """Deliveries that were given up."""
        self.dead: deque[DeadDelivery] = deque(maxlen=KEPT_DEAD)

    @property
    def waiting(self) -> int:
        """How many deliveries are under way."""
        return len(self._waiting)

    async def run(self) -> None:
        """Deliver what is published from now on. A supervised task."""
        self._tasks = TaskScope("the webhook")
        try:
            await self._follow()
        finally:
            await self._tasks.close()

    async def _follow(self) -> None:
        while True:
            try:
                async for event in self._bus.subscribe(types=TYPES):
                    if event.origin == self._bus.origin:  # others deliver their own
                        self.offer(event)
            except StoreUnavailable:
                await self._clock.sleep(1.0)

    def offer(self, event: EventRecord) -> None:
        """Deliver an event. Never waits, never fails."""
        message_id = f"evt_{event.seq}"
        if message_id in self._waiting:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._give_up(event, 0, "too many deliveries wait")
            return
        self._waiting.add(message_id)
        self._tasks.spawn(self._deliver(event, message_id))

    async def _deliver(self, event: EventRecord, message_id: str) -> None:
        body, why, attempts = _write(event), "", 0
        try:
            for pause in (0.0, *PAUSES):
                await self._clock.sleep(pause * random.uniform(0.8, 1.2))
                attempts += 1
                try:
                    async with self._slots:
                        status = await self._post(message_id, body)
                except AddressRefused as error:
                    why = str(error)
                    break
                except OSError as error:
                    why = f"{type(error).__name__}: {error}" if str(error) else "no answer in time"
                    continue
                if 200 <= status < 300:
                    self.delivered += 1
                    return
                why = f"it answered {status}"
                if status == 410:
                    break
            self._give_up(event, attempts, why)
        finally:
            self._waiting.discard(message_id)

    async def _post(self, message_id: str, body: bytes) -> int:
        """Post a body once, signed at this moment; return the status."""
        headers = sign_webhook(self._secret, message_id, self._now(), body)
        headers["content-type"] = "application/json"
        sent = fetch(
            self._url, self._dialer, method="POST", headers=headers, body=body, timeout=TIMEOUT
        )
        return (await sent).status

    def _give_up(self, event: EventRecord, attempts: int, why: str) -> None:
        self.failed += 1
        why = KNOWN.redact(why)
        gone = DeadDelivery(f"evt_{event.seq}", event.type, event.subject, event.at, attempts, why)
        self.dead.append(gone)
        log.error("the webhook was not told of %s %s: %s", event.type, gone.id, why)


def _write(event: EventRecord) -> bytes:
    told: dict[str, Any] = {
        "type": event.type,
        "timestamp": event.at,
        "data": event.data,
    }
    return msgspec.json.encode(told)
