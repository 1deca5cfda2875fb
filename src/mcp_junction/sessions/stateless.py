"""StatelessClient: a client as one request describes it. Listen: its open stream.

A StatelessClient has no session and no memory. A Listen is one ``subscriptions/listen``: what the
client wants to hear, until the stream ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Channel, Snapshot
from mcp_junction.calls.methods import Address
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import RESOURCES
from mcp_junction.catalog.scope import OPEN_SCOPES, Scopes
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import INVALID_REQUEST, LATEST_HANDSHAKE, SUBSCRIPTION_KEY, Era
from mcp_junction.sessions.session import Client
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.handshake import RELAYED_CAPABILITIES, Hello, askable_methods
from mcp_junction.upstream.outcome import Outcome, OutcomeKind
from mcp_junction.upstream.upstream import Upstream


class StatelessClient(Client):
    """The sender of stateless requests, and what it can be asked."""

    era = Era.STATELESS
    has_listed = False
    takes_links = True

    __slots__ = ("_hello", "questions")

    def __init__(
        self,
        principal: Principal,
        endpoint: Endpoint,
        spelling: Spelling,
        capabilities: dict[str, Raw],
        client_info: Raw,
        usage: QuotaUsage | None = None,
        scopes: Scopes = OPEN_SCOPES,
    ) -> None:
        super().__init__(principal, endpoint, spelling, client_info, usage, scopes)
        relayed = {
            key: raw.copy() for key, raw in capabilities.items() if key in RELAYED_CAPABILITIES
        }
        self.questions = askable_methods(relayed)
        """What it can be asked."""
        self._hello = Hello(
            protocol_version=LATEST_HANDSHAKE,
            capabilities=msgspec.json.encode(relayed),
            client=bytes(client_info or b"{}"),
            user=principal,
        )

    def note_listed(self, changed: str, generation: int) -> None:
        """Remember nothing: it hears of changes by ``subscriptions/listen``."""

    def hello(self) -> Hello:
        return self._hello

    def wants_log(self, params: Raw, level: int | None) -> bool:
        return level is not None and envelope.has_level(params, level)

    @property
    def envelope(self) -> Raw:
        meta = envelope.sender_meta(self._hello.client, self._hello.capabilities)
        return Raw(msgspec.json.encode(meta))

    async def ask(self, method: str, params: Raw, channel: Channel | None = None) -> Outcome:
        return outcomes.failed(INVALID_REQUEST, "a stateless client is asked by its own requests")

    def send(self, frame: bytes) -> None:
        """Drop the frame: there is no channel beside the requests' own."""

    def offer(self, frame: bytes) -> None:
        """Drop the frame: there is no channel beside the requests' own."""


REFUSED_KEY: Final = "junction/refused"
"""In ``_meta`` of an acknowledgement: why there is no subscription, by URI."""
NOTHING_REFUSED: Final[Mapping[str, str]] = MappingProxyType({})
_MAX_EARLY: Final = 64
_PATIENCE: Final = 5.0


class Wanted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The changes that a client wants to be notified of."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: tuple[str, ...] = ()

    def announcements(self) -> frozenset[str]:
        """The notifications of changed lists among them."""
        chosen = {
            "notifications/tools/list_changed": self.tools_list_changed,
            "notifications/prompts/list_changed": self.prompts_list_changed,
            "notifications/resources/list_changed": self.resources_list_changed,
        }
        return frozenset(method for method, wanted in chosen.items() if wanted)


class Listen(StatelessClient):
    """A stateless client with one open stream of what it wants to hear."""

    __slots__ = ("_channel", "_early", "_meta", "announcements", "id")

    def __init__(
        self, client: StatelessClient, frame_id: bytes, wanted: Wanted, channel: Channel
    ) -> None:
        super().__init__(
            client.principal,
            client.endpoint,
            client.spelling,
            {},
            client.client_info,
            client.usage,
            client.scopes,
        )
        self.shown_at = client.shown_at
        self.id = frame_id
        self.announcements = wanted.announcements()
        self._channel = channel
        self._early: list[bytes] | None = []
        self._meta = {SUBSCRIPTION_KEY: Raw(frame_id)}

    def acknowledge(self, honoured: Wanted, refused: Mapping[str, str] = NOTHING_REFUSED) -> None:
        """Confirm the subscriptions, then send what was held back until now.

        ``refused`` says by URI why there is no subscription: the protocol has no place for that.
        """
        meta = {**self._meta, REFUSED_KEY: refused} if refused else self._meta
        params = {"notifications": honoured, "_meta": meta}
        frame = encode.notification(
            "notifications/subscriptions/acknowledged", encode.dumps(params)
        )
        self._channel.send(frame)
        early, self._early = self._early or (), None
        for frame in early:
            self._channel.send(frame)

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        members = frames.members(params)
        envelope.add_envelope(members, self._meta)
        frame = encode.notification(method, encode.dumps(members))
        if self._early is None:
            self._channel.offer(frame)  # who does not read can do without
        elif len(self._early) < _MAX_EARLY:
            self._early.append(frame)

    def result(self) -> bytes:
        """Make the answer that ends the stream."""
        payload = {"resultType": "complete", "_meta": self._meta}
        return encode.result(self.id, encode.dumps(payload))


def is_notified_by(upstream: Upstream, subscriber: object) -> bool:
    """Whether this link notifies a subscriber; a Listen has no link of its own."""
    if upstream.session is not None:
        return upstream.session is subscriber
    return isinstance(subscriber, Listen) or not upstream.is_isolated


async def subscribe_all(
    listen: Listen, snapshot: Snapshot, uris: Sequence[str]
) -> dict[str, str | None]:
    """Subscribe ``listen`` to resources; return by URI why that failed, None where it did not."""
    wanted = list(dict.fromkeys(uris))
    done = await asyncio.gather(*(_subscribe(listen, snapshot, uri) for uri in wanted))
    return dict(zip(wanted, done, strict=True))


async def _subscribe(listen: Listen, snapshot: Snapshot, uri: str) -> str | None:
    """Subscribe to one resource; return why that failed."""
    params = {"uri": Raw(encode.dumps(uri))}
    call = Call(listen, snapshot, "resources/subscribe", Address(RESOURCES, uri), params, listen)
    late = asyncio.get_running_loop().call_later(_PATIENCE, call.expire, _PATIENCE)
    try:
        outcome = await snapshot.handle(call)
        return None if outcome.kind is OutcomeKind.RESULT else outcome.message
    finally:
        late.cancel()
