"""CredentialSource: the token of one subject for one server, which its links ask for.

    none ──401──▶ needs_sign_in ──sign-in──▶ signed_in ──refresh fails──▶ refresh_failing
    refresh_failing ──▶ signed_in | needs_sign_in (invalid_grant) | unavailable (expired)
    signed_in ──a fresh token is refused──▶ refused

One renewal at a time: whoever needs it waits for the same task; between processes the credential's
lease decides (``kinds.py``). The old token serves meanwhile; calls wait only for an expired one.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from mcp_junction.config.auth import TOKEN_EXCHANGE, ServerAuth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import parse_url
from mcp_junction.credentials.subjects import SubjectTokens, exchange_subject, subject_of
from mcp_junction.errors import OAuthError, StoreError, VaultError
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.oauth.sign_in import MAX_STEP_UPS, step_up
from mcp_junction.oauth.tokens import STEP as TOKEN_REQUEST
from mcp_junction.oauth.tokens import renewal_time
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.versions import DENIED
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome
from mcp_junction.upstream.tokens import NO_TOKEN, AccessToken

if TYPE_CHECKING:
    from mcp_junction.store.credentials import CredentialTables

WAIT: Final = 10.0
"""Seconds that a call waits for a renewal."""
_RETRY_LEAST: Final = 1.0
_RETRY_MOST: Final = 60.0
_STEP_UP_MEMORY: Final = 600.0
_TOO_FEW_SCOPES: Final = Failure(FailureKind.REFUSED)


class AuthState(StrEnum):
    """Whether a subject is signed in to a server."""

    NONE = "none"  # the server has not asked for a credential
    NEEDS_SIGN_IN = "needs_sign_in"
    SIGNED_IN = "signed_in"
    REFRESH_FAILING = "refresh_failing"  # the token is good still, and cannot be renewed now
    UNAVAILABLE = "unavailable"  # the token has expired, and the issuer does not answer
    REFUSED = "refused"  # the server refuses a token that was just made for it


SIGNED_OUT: Final = (AuthState.NEEDS_SIGN_IN, AuthState.UNAVAILABLE, AuthState.REFUSED)


class AuthFacts(msgspec.Struct, frozen=True):
    """What is shown of a credential: nothing of it is secret."""

    state: str
    subject: str
    until: float | None = None
    issuer: str | None = None
    reason: str | None = None
    scopes: tuple[str, ...] = ()


class CredentialsOwner(Protocol):
    """What a source needs of Credentials."""

    tasks: TaskScope
    process_id: str

    subject_tokens: SubjectTokens | None

    @property
    def open_tables(self) -> Callable[[], Awaitable[CredentialTables | None]]: ...

    def source_for(
        self, definition: ServerDefinition, auth: ServerAuth, subject: str
    ) -> CredentialSource: ...

    def link_for(self, source: CredentialSource) -> str: ...

    def forget(self, source: CredentialSource) -> None: ...

    def note(self, source: CredentialSource, action: str, detail: str) -> None: ...

    def note_state(self, source: CredentialSource) -> None: ...


class CredentialSource(ABC):
    """One credential. Subclasses know how it is renewed."""

    def __init__(
        self, owner: CredentialsOwner, definition: ServerDefinition, auth: ServerAuth, subject: str
    ) -> None:
        self.owner = owner
        self.definition = definition
        self.auth = auth
        self.subject = subject
        self.current = NO_TOKEN
        self.must_wait = False
        self.state = AuthState.NONE
        self.reason = ""
        self.issuer = ""
        self.scopes: tuple[str, ...] = ()
        """What the token was asked for, and what a server has asked for beyond that since."""
        self.challenge: BearerChallenge | None = None
        self.expires_at: float | None = None
        self.wants_scopes = False
        self._step_ups = 0
        self._stepped_at = 0.0
        self._issued_at = 0.0
        self._is_refused = False  # the current token, and so it is renewed
        self._is_for_refusal = False  # was the current token made, because one was refused
        self._failures = 0
        self._retry_at = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()

    # -- the TokenSource of links

    @property
    def is_signed_out(self) -> bool:
        return self.state in SIGNED_OUT or self.wants_scopes

    def for_principal(self, principal: Principal) -> CredentialSource:
        if not self.auth.is_per_agent:
            return self
        return self.owner.source_for(self.definition, self.auth, self._subject_of(principal))

    def _subject_of(self, principal: Principal) -> str:
        if self.auth.type == TOKEN_EXCHANGE and (found := exchange_subject(principal)):
            return found
        return subject_of(principal)

    async def prepare(self) -> Outcome | None:
        if self._needs_person:
            await self.reload()
        else:
            await self._renew_shared()
        return self.refusal() if self.must_wait else None

    @property
    def _needs_person(self) -> bool:
        return self.state in (AuthState.NEEDS_SIGN_IN, AuthState.REFUSED)

    async def renew(
        self, refused: AccessToken, challenge: BearerChallenge | None, *, is_again: bool
    ) -> Outcome | None:
        self.challenge = challenge or self.challenge
        if refused.version != self.current.version and self.current.line:
            return None
        if challenge is not None and challenge.wants_scope:
            return self._ask_for_scopes(challenge)
        if self._is_for_refusal and not refused.is_used and self._is_fresh:
            self.must_wait = True
            self._set_state(AuthState.REFUSED, "it refuses the token that was just made for it")
            return self.refusal()
        if is_again and self._is_fresh:
            why = "it refuses this call with a token that it takes otherwise"
            return outcomes.sign_in_needed(self.definition.key, why, self.owner.link_for(self))
        self._is_refused = True
        await self._renew_shared()
        is_new = refused.version != self.current.version and bool(self.current.line)
        return None if is_new and not self.must_wait else self.refusal()

    @property
    def _is_fresh(self) -> bool:
        """Whether the token is in the first half of its life, as far as that is known."""
        if self.expires_at is None:
            return True
        return time.time() < (self._issued_at + self.expires_at) / 2

    def wait_for_change(self) -> Awaitable[object]:
        return self._changed.wait()

    def refusal(self) -> Outcome:
        key, why = self.definition.key, self.reason or "nobody is signed in"
        if self.state in (AuthState.UNAVAILABLE, AuthState.REFRESH_FAILING):
            words = f"its token has expired and cannot be renewed: {why}"
            return outcomes.unavailable(key, words)
        is_good = self.state is AuthState.SIGNED_IN and not self.wants_scopes
        if is_good and self._is_renewing:  # for longer than a call waits
            return outcomes.unavailable(key, "its token has ended and is being renewed")
        return outcomes.sign_in_needed(key, why, self.owner.link_for(self))

    # -- for Credentials

    @property
    def facts(self) -> AuthFacts | None:
        """What is shown of it; None while the server has not asked for a credential."""
        if self.state is AuthState.NONE:
            return None
        return AuthFacts(
            self.state.value, self.subject, self.expires_at, self.issuer or None,
            self.reason or None, self.scopes,
        )  # fmt: skip

    @property
    def is_authenticated(self) -> bool | None:
        if self.state is AuthState.NONE:
            return None
        if self.state is AuthState.REFRESH_FAILING:
            return not self._is_refused
        return self.state is AuthState.SIGNED_IN

    async def reload(self) -> None:  # noqa: B027 - most kinds have nothing stored
        """Take over what the store has, if that is newer."""

    async def refresh_now(self) -> None:
        """Renew it now, whether that is due or not."""
        self._retry_at = 0.0
        await self._renew_shared()

    def close(self) -> None:
        self._stop_timers()

    # -- renewing

    @abstractmethod
    async def _renew(self, version: int) -> None:
        """Adopt another token than that of a version, or set the state that says why not.

        Raises OAuthError or StoreError where it may work later.
        """

    async def _renew_shared(self) -> None:
        """Wait for the one renewal under way, or begin it; but not for ever."""
        if not self._is_renewing:
            if time.monotonic() < self._retry_at:
                return  # it has just failed: the issuer is not asked again for every call
            self._renewing = self.owner.tasks.spawn(self._try_renewal())
        assert self._renewing is not None
        await asyncio.wait({self._renewing}, timeout=WAIT)

    @property
    def _is_renewing(self) -> bool:
        return self._renewing is not None and not self._renewing.done()

    async def _try_renewal(self) -> None:
        try:
            await self._renew(self.current.version)
            if self.must_wait and self.state is AuthState.SIGNED_IN:
                host = parse_url(self.issuer).host if self.issuer else self.definition.key
                raise OAuthError(TOKEN_REQUEST, host, "it gives tokens that have ended already")
        except (OAuthError, StoreError, VaultError) as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        """Keep the token after a failure that may pass, and try again later."""
        self._failures += 1
        is_over = self.must_wait or not self.current.line
        state = AuthState.UNAVAILABLE if is_over else AuthState.REFRESH_FAILING
        self.must_wait = self.must_wait or bool(self.current.line and is_over)
        self._set_state(state, str(error))
        self.owner.note(self, "refresh_failed", str(error))
        delay = min(_RETRY_MOST, _RETRY_LEAST * 2 ** min(self._failures - 1, 6))
        delay *= 0.75 + 0.5 * random.random()
        self._retry_at = time.monotonic() + delay
        self._after(delay, self._renew_soon)

    def _renew_soon(self) -> None:
        if not self._is_renewing:
            self._renewing = self.owner.tasks.spawn(self._try_renewal())

    def _adopt(
        self, version: int, value: str, end: float | None = None, issued_at: float = 0.0
    ) -> None:
        """Use a token from now on; ``end`` is when it expires, if that is known."""
        self._stop_timers()
        KNOWN.learn_renewed(f"{self.definition.id or self.definition.key} {self.subject}", value)
        self.current = AccessToken(version, self._header_line(value))
        self.expires_at = end
        self.must_wait = end is not None and end <= time.time()
        self._issued_at = issued_at
        self._is_for_refusal, self._is_refused = self._is_refused, False
        if not self.must_wait:
            self._failures = 0
            self._retry_at = 0.0
        self.wants_scopes = False
        self._set_state(AuthState.SIGNED_IN, "", is_new=True)
        if end is not None and not self.must_wait:
            due = renewal_time(issued_at, end, random.random())
            self._after(due - time.time(), self._renew_if_used)
            self._after(end - time.time(), self._expire)

    def _header_line(self, value: str) -> bytes:
        header = self.auth.header
        line = f"{header}: {value}" if header else f"authorization: Bearer {value}"
        return f"{line}\r\n".encode()

    def _renew_if_used(self) -> None:
        if self.current.is_used and self._can_renew:
            self._renew_soon()

    @property
    def _can_renew(self) -> bool:
        """Whether a token can be had without a person."""
        return True

    def _expire(self) -> None:
        """Let nothing be sent with a token that has ended."""
        self.must_wait = True
        if self.state is AuthState.REFRESH_FAILING:
            self._set_state(AuthState.UNAVAILABLE, self.reason)

    def _drop(self, state: AuthState, reason: str) -> None:
        """Stop using the token: it is good no more."""
        self._stop_timers()
        had_token = bool(self.current.line)
        self.current = AccessToken(self.current.version, b"")
        self.must_wait = had_token or self.must_wait
        self.expires_at = None
        self._set_state(state, reason)

    def _ask_for_scopes(self, challenge: BearerChallenge) -> Outcome:
        """Have the next sign-in ask for more scopes, unless that was tried or is nothing new."""
        now = time.monotonic()
        if now - self._stepped_at > _STEP_UP_MEMORY:
            self._step_ups = 0
        wanted = step_up(self.scopes, challenge.scopes)
        if wanted is None or self._step_ups >= MAX_STEP_UPS:
            named = " ".join(challenge.scopes) or "others than it names"
            words = f"server {self.definition.key!r} wants scopes that no sign-in gives: {named}"
            return outcomes.failed(
                DENIED, words, Delivery.NOT_SENT, failure=_TOO_FEW_SCOPES,
                server=self.definition.key,
            )  # fmt: skip
        self._step_ups += 1
        self._stepped_at = now
        self.wants_scopes = True
        self.scopes = wanted
        self.reason = f"it wants more scopes: {' '.join(challenge.scopes)}"
        return self.refusal()

    # -- state and time

    def _set_state(self, state: AuthState, reason: str, *, is_new: bool = False) -> None:
        if state is self.state and reason == self.reason and not is_new:
            return
        before, self.state, self.reason = self.state, state, reason
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if before is not state:
            self.owner.note_state(self)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something later; in place of when it was planned before."""
        if (planned := self._timers.get(act)) is not None:
            planned.cancel()
        loop = asyncio.get_running_loop()
        self._timers[act] = loop.call_later(max(0.0, seconds), act)

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
