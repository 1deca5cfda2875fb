"""Session: one conversation with a handshake client: its principal, version, spelling and calls.

Client: what is known of a client of either era.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Channel
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint
from mcp_junction.catalog.scope import OPEN_SCOPES, Scope, Scopes
from mcp_junction.policy.principal import CALLING_ROLES, Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import (
    LATEST_HANDSHAKE,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    Era,
)
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.handshake import (
    RELAYED_CAPABILITIES,
    Hello,
    askable_methods,
    question_refusal,
)
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

_question_ids = itertools.count(1)


class Client:
    """Who a client is, where it came in, and what it may see."""

    __slots__ = (
        "client",
        "client_info",
        "endpoint",
        "principal",
        "scopes",
        "shown_at",
        "spelling",
        "usage",
    )

    def __init__(
        self,
        principal: Principal,
        endpoint: Endpoint,
        spelling: Spelling,
        client_info: Raw,
        usage: QuotaUsage | None,
        scopes: Scopes,
    ) -> None:
        self.principal = principal
        self.scopes = scopes
        self.usage = usage or QuotaUsage()
        self.spelling = spelling
        self.endpoint = endpoint
        self.shown_at: Endpoint | None = None
        """The endpoint with what it lists to this client, once that is known."""
        self.client = ""
        """The name of the client's program."""
        self.client_info = client_info

    @property
    def scope(self) -> Scope:
        """What the client may see, by the policy as it is now."""
        return self.scopes.of(self.principal, self.shown_at or self.endpoint)


class Session(Client):
    """One conversation with one client. It is the client's channel for what belongs to no call."""

    era = Era.HANDSHAKE

    __slots__ = (
        "_envelope",
        "_questions",
        "calls",
        "capabilities",
        "id",
        "listed",
        "log_level",
        "offer",
        "protocol_version",
        "send",
        "takes_links",
    )

    def __init__(
        self,
        principal: Principal,
        spelling: Spelling,
        send: Callable[[bytes], None],
        offer: Callable[[bytes], None] | None = None,
        endpoint: Endpoint = EVERYTHING,
        usage: QuotaUsage | None = None,
        scopes: Scopes = OPEN_SCOPES,
    ) -> None:
        super().__init__(principal, endpoint, spelling, Raw(b"{}"), usage, scopes)
        self.id = ""
        """The id that its client names it by; over a pipe it has none."""
        self.send = send
        self.offer = offer or send
        self.protocol_version: str | None = None
        self.takes_links = False
        """Whether the client understands links to resources in results: its version has them."""
        self.capabilities: dict[str, Raw] = {}
        self.calls: dict[bytes, Call] = {}
        self.log_level: int | None = None
        self.listed: dict[str, int] | None = None
        """The generation of each list the client has read, by its ``list_changed`` notification."""
        self._envelope: tuple[Raw, int | None, Raw] | None = None
        self._questions: dict[bytes, asyncio.Future[Outcome]] = {}

    @property
    def is_open(self) -> bool:
        """Whether the client has sent ``initialize``."""
        return self.protocol_version is not None

    @property
    def may_call(self) -> bool:
        """Whether the client has the right to call anything."""
        return self.principal.role in CALLING_ROLES

    @property
    def has_listed(self) -> bool:
        """Whether the client was shown a list before."""
        return self.listed is not None

    def note_listed(self, changed: str, generation: int) -> None:
        """Note that the client was shown a list; later changes are announced as ``changed``."""
        self.listed = {**(self.listed or {}), changed: generation}

    @property
    def questions(self) -> frozenset[str]:
        return askable_methods(self.capabilities)

    def hello(self) -> Hello:
        """Describe the client to a server that is opened for it alone."""
        relayed = {
            key: raw for key, raw in self.capabilities.items() if key in RELAYED_CAPABILITIES
        }
        return Hello(
            protocol_version=self.protocol_version or LATEST_HANDSHAKE,
            capabilities=msgspec.json.encode(relayed),
            client=bytes(self.client_info),
            prefers=Era.HANDSHAKE,
            user=self.principal,
        )

    @property
    def envelope(self) -> Raw:
        """The ``_meta`` that describes the client to stateless servers; cached until it changes."""
        made = self._envelope
        if made is None or made[0] is not self.client_info or made[1] != self.log_level:
            hello = self.hello()
            level = None if self.log_level is None else LOG_LEVELS[self.log_level]
            meta = envelope.sender_meta(hello.client, hello.capabilities, level)
            self._envelope = made = self.client_info, self.log_level, Raw(encode.dumps(meta))
        return made[2]

    # -- to the client

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        """Send a notification, which is dropped when the client does not read."""
        self.offer(encode.notification(method, params))

    async def ask(self, method: str, params: Raw, channel: Channel | None = None) -> Outcome:
        """Ask the client something on a server's behalf."""
        refused = question_refusal(method, params, self.questions)
        if refused is not None:
            return refused
        question = b'"junction-%d"' % next(_question_ids)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._questions[question] = answer
        (channel or self).send(encode.request(question, method, params))
        try:
            return await answer
        except asyncio.CancelledError:
            reason = b'{"requestId":%b,"reason":"the server no longer waits"}' % question
            self.notify("notifications/cancelled", reason)
            raise
        finally:
            del self._questions[question]

    def wants_log(self, params: Raw, level: int | None = None) -> bool:
        """Whether the client wants log messages of this one's level, as it has set it."""
        return envelope.has_level(params, self.log_level or 0)

    def offer_log(self, rank: int, message: bytes) -> None:
        """Send an encoded log message of level ``rank``, if the client wants that level."""
        if self.is_open and rank >= (self.log_level or 0):
            self.offer(message)

    # -- from the client

    def take_answer(self, frame: Frame) -> None:
        """Take the client's answer to a question of ours."""
        waiting = self._questions.get(bytes(frame.id))
        if waiting is not None and not waiting.done():
            if frame.error:
                waiting.set_result(outcomes.refused(frame.error))
            else:
                waiting.set_result(Outcome(OutcomeKind.RESULT, frame.result))

    def cancel_call(self, request_id: bytes, reason: str) -> None:
        """Cancel the call with this request id, if it still runs."""
        call = frames.find_by_id(self.calls, request_id)
        if call is not None:
            call.cancel(reason)

    def close(self, reason: str) -> None:
        """End the session: running calls and open questions fail with ``reason``."""
        for call in list(self.calls.values()):
            call.drop(reason)
        for waiting in self._questions.values():
            if not waiting.done():
                gone = outcomes.failed(METHOD_NOT_FOUND, reason, Delivery.UNKNOWN)
                waiting.set_result(gone)
