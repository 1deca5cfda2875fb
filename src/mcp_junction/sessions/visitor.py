"""Visitor: a client of the stateless era, as far as one request tells. No conversation, no memory.

Requests that say the same of their sender share one visitor. It has no wire of its own: what
belongs to no call can reach it only where it listens.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Wire
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import envelope
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import INVALID_REQUEST, LATEST_HANDSHAKE, Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.hello import Hello
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.questions import RELAYED, askable


class Visitor:
    """Who asks, and what they can be asked."""

    era = Era.STATELESS

    __slots__ = (
        "_hello",
        "client_info",
        "endpoint",
        "principal",
        "questions",
        "spelling",
        "usage",
    )

    def __init__(
        self,
        principal: Principal,
        endpoint: Endpoint,
        spelling: Spelling,
        capabilities: dict[str, Raw],
        client_info: Raw,
        usage: QuotaUsage | None = None,
    ) -> None:
        self.principal = principal
        self.usage = usage or QuotaUsage()
        self.endpoint = endpoint
        self.spelling = spelling
        self.client_info = client_info
        relayed = {key: raw.copy() for key, raw in capabilities.items() if key in RELAYED}
        self.questions = askable(relayed)
        """What it can be asked."""
        self._hello = Hello(
            protocol_version=LATEST_HANDSHAKE,
            capabilities=msgspec.json.encode(relayed),
            client=bytes(client_info or b"{}"),
            user=principal,
        )

    def hello(self) -> Hello:
        return self._hello

    def wants_log(self, params: Raw) -> bool:
        return False  # each call says for itself

    @property
    def envelope(self) -> Raw:
        said = envelope.meta(self._hello.client, self._hello.capabilities)
        return Raw(msgspec.json.encode(said))

    async def ask(self, method: str, params: Raw, wire: Wire | None = None) -> Outcome:
        return outcomes.failed(INVALID_REQUEST, "a stateless client is asked by its own requests")

    def send(self, frame: bytes) -> None:
        """Nobody is there."""

    def offer(self, frame: bytes) -> None:
        """Nobody is there."""
